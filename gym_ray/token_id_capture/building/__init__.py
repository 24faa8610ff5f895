"""From proved records to chains: links, retries, ends, and the response that a chain projects to."""
