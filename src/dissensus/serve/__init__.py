"""A web page and a JSON API over one detector, for `dissensus serve`. Needs the extra serve.

service -> cards (HTML) -> page (Gradio), api (FastAPI, JSON) -> server
"""
