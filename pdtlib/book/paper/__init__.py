"""The book on paper: a PDF and an EPUB, made of the built site by the browser that shows it.

``python -m pdtlib.book.paper [pdf] [epub]`` (``make pdf``, ``make epub``) needs ``make book`` and Chromium,
nothing else. Figures are as the site draws them, explorers in the state in which their page starts.
"""
