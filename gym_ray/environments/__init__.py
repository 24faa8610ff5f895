"""What scores a rollout: the resources-server contract and the environments that come with the package."""
