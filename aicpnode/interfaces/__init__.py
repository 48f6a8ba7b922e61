"""How people and programs talk to one node: command surface, control socket, registry, prompt."""
