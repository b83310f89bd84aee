"""What every simulated cloud is made of: web servers, processes of engines, a life of its own."""
