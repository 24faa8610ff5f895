"""Where bytes become durable: the only place that knows what "durable" means."""
