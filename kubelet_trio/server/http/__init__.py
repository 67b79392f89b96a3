"""HTTP/1.1 on Trio streams: connections, routes and what handlers take and return."""
