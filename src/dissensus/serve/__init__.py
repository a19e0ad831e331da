"""The web page and the JSON API over one detector, for `dissensus serve`; needs dissensus[serve].

service -> shown (HTML), results (JSON) -> page (Gradio), api (FastAPI) -> server
"""
