"""Modules of the stage `format_prompts`: chat templates, instruction styles, and the sandbox in which templates are
rendered.
"""
