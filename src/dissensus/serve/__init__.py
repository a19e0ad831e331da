"""A web page and a JSON API over one detector, for `dissensus serve`. Needs the extra serve.

service -> adapting -> cards (HTML) -> page, adapt_tab (Gradio), api (FastAPI, JSON) -> server
"""
