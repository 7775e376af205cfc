"""What runs warmpool: the cloud, the images, the local stack, and the commands that deploy."""
