"""The playground: a page that answers while one types and drags, and the answers that it asks for.

The same answers are given by a Python in the browser (the page of the documentation) and by a local server
(`batchbridge explain FILE --live`): one question and one answer, as JSON, over two transports.
"""

from batchbridge.playground.answers import answer, answer_json

__all__ = ["answer", "answer_json"]
