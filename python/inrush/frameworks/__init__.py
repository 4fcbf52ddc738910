"""Inrush inside other frameworks: plug-ins that their registries find. `inrush` imports none of them."""
