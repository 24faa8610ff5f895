"""From a row, an agent's reply and the captured calls to one finished record."""
