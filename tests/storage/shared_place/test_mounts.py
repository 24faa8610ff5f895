from __future__ import annotations

from gym_ray.storage.shared_place.mounts import MountFacts, mount_of

TABLE = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:44 / /srv/with\040blank rw,noatime shared:7 master:2 - nfs4 10.0.0.1:/export/a\040b rw,vers=4.2,hard,nolock
31 22 0:45 / /srv rw - tmpfs none rw
32 31 0:46 / /srv ro - xfs /dev/vdb ro,attr2
nonsense
33 22 0:47 / /half rw -
"""


def test_the_longest_mount_holds_a_directory() -> None:
    assert mount_of("/srv/with blank/deep/er", TABLE) == MountFacts(
        "/srv/with blank", "nfs4", "10.0.0.1:/export/a b", ("rw", "noatime", "vers=4.2", "hard", "nolock")
    )
    assert mount_of("/home/x", TABLE) == MountFacts("/", "ext4", "/dev/vda", ("rw", "relatime", "discard"))


def test_a_later_mount_covers_an_earlier_one() -> None:
    found = mount_of("/srv/x", TABLE)
    assert found is not None
    assert str(found) == "/dev/vdb on /srv type xfs (ro,attr2)"


def test_a_name_that_only_begins_alike_is_elsewhere() -> None:
    found = mount_of("/srvx", TABLE)
    assert found is not None
    assert found.point == "/"


def test_no_table_no_mount() -> None:
    assert mount_of("/srv", "") is None
