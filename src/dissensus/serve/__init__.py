"""A web page and a JSON API over one detector, for `dissensus serve`. Needs the extra serve.

batcher -> service -> adapting -> cards (HTML) -> page, adapt_tab (Gradio), api (FastAPI, JSON) -> server

Around the API are metrics, access and uploads (who, how much), and below it connections (how slowly).
"""
