"""Checks of the Python package `openai`."""

import checks
import openai_chat  # noqa: F401 - registers its checks
import openai_other  # noqa: F401

checks.run("openai (Python)", "openai")
