"""The CUDA backend of `loopspec`. There is nothing to call here: `import loopspec` finds it."""
