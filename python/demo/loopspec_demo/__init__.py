"""The demo model of loopspec: a folder beside this file, which Engine("ouro-demo") finds."""
