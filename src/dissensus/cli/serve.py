"""dissensus serve: a web page and a JSON API over a run."""

from __future__ import annotations

from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus.cli.command import command, say, uncalibrated


@command("serve", "dissensus serve runs/mine")
def serve(
    run: str,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    allow_host: list[str] | None = None,
    max_upload_mb: float = 20.0,
    max_pixels: float = 40.0,
    max_seconds: float = 30.0,
    max_batch: int = 32,
    max_wait_ms: float = 5.0,
    examples: str | None = None,
    train: str | None = None,
    images: str | None = None,
    engine: str | None = None,
    accelerator: str = "auto",
) -> None:
    """Serve a run on this machine: a page to drop images on, and a JSON API.

    Nothing leaves this machine; uploads are deleted when the server stops. The environment variable DISSENSUS_TOKEN is
    a token that requests must carry, and that the page asks for. Needs the extra serve.

    Args:
        run: a run folder, preferably calibrated: dissensus calibrate.
        host: the address to listen on; 0.0.0.0 is every address, open to everyone who can reach this machine.
        port: the port to listen on; 0 picks a free one.
        allow_host: names under which the server is reached, besides localhost, --host and IP addresses; * allows any.
        max_upload_mb: the largest upload in MB: a file on the page, a request to the API.
        max_pixels: the largest image in megapixels; a larger one is rejected before it is decoded.
        max_seconds: the time limit of a request in seconds; after SIGTERM, running requests have as long to finish.
        max_batch: images that share a pass of the trunk, at most.
        max_wait_ms: the time in ms for which a pass waits for images that are being decoded.
        examples: a folder of images to click; by default some that the run was evaluated on.
        train: the training features, to show the nearest training images of a run without the fitted score knn.
        images: the training images, to show the nearest ones with their names.
        engine: how the trunk runs: dissensus list engines; onnx is faster on CPUs. By default eager, or onnx-int8 for a
            run that was trained on its features.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
    """
    import os

    extras.require("serve", "dissensus serve")
    from dissensus.cli import inputs
    from dissensus.detection.detector import Detector
    from dissensus.features import check_backbone
    from dissensus.images import ImageSet
    from dissensus.models.joined import JoinedEnsemble
    from dissensus.serve import examples as clickable
    from dissensus.serve import server
    from dissensus.serve.access import Access
    from dissensus.serve.neighbours import Neighbours
    from dissensus.serve.service import Service
    from dissensus.serve.settings import Limits
    from dissensus.training.run import Run

    limits = Limits(max_upload_mb, max_pixels, max_seconds, max_batch, max_wait_ms)
    token = os.environ.get("DISSENSUS_TOKEN")
    access = Access(allow_host or (), token, host)
    with server.bind(host, port) as where:  # first, because the rest takes a while
        device = inputs.launch(accelerator=accelerator).device
        detector = Detector.load(run, engine=engine, device=device)
        if train is not None:
            Run.open(run).check_single("--train takes one backbone")
        features = None if train is None else inputs.find_features(train)[0]
        if features is not None:
            check_backbone(detector.backbone_info, features, "--train")
        neighbours = Neighbours.of(detector, features, None if images is None else ImageSet.find(images))
        if neighbours is None:
            if images is not None:
                raise DissensusError(
                    "--images shows training rows; this run has no fitted score knn and --train is not given: give it"
                )
            joined = isinstance(detector.ensemble, JoinedEnsemble)
            say(
                "a joined run shows no nearest training images: serve one of its parts for these"
                if joined
                else "this run has no fitted score knn: nearest training images need --train FEATURES"
            )
        service = Service(detector, place(run).resolve().name, neighbours, place(run), limits)
        if detector.threshold is None:
            say(uncalibrated(run))
        shown = clickable.of_folder(examples) if examples is not None else clickable.of_run(place(run))
        number = where.getsockname()[1]

        def ready() -> None:
            if host in server.EVERYWHERE and token is None:
                say("WARNING: listening on every address of this machine, without a token: set DISSENSUS_TOKEN")
            say("press Ctrl-C to stop")
            name = "localhost" if host in server.EVERYWHERE else f"[{host}]" if ":" in host else host
            print(f"http://{name}:{number}", flush=True)

        server.serve(service, shown, where, access=access, ready=ready)
