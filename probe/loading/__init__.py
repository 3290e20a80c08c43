"""Behind `probe.models.load`: what a config may say, what a folder must hold, how a hub is asked, how a bridge is booted."""
