"""Tests of `import trnflow`."""
