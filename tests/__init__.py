import pytest

# Asserts in modules that are no test files show their values too.
pytest.register_assert_rewrite("tests.graphs")
