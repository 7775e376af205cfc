"""Images of functions, instances and the publishing job, and how they are built where no registry can be reached."""
