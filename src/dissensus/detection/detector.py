"""Detector: an ensemble with a calibrated threshold, which decides for one sample whether it is out of distribution.

detector = Detector.load("runs/mine")
detector.calibrate("photos/held-out", false_alarms=0.05)     # ID samples that were not trained on
for verdict in detector.predict(["cat.jpg", "what.png"]):
    print(verdict.name, verdict.class_name, verdict.verdict, verdict.p_value)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from huggingface_hub import CommitInfo

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.outputs import writing
from dissensus._core.places import place
from dissensus.backbones import Backbone, joined
from dissensus.detection import _calibration, _predicting, _streaming, pretrained
from dissensus.detection.members import BATCH, Members, Outputs
from dissensus.detection.samples import PathLike, Samples, resolve
from dissensus.detection.threshold import Identity, Threshold
from dissensus.detection.verdicts import Verdict, Verdicts, class_names
from dissensus.features import FeatureSet
from dissensus.features.joined import JoinedFeatures
from dissensus.functional import aggregates, expressions
from dissensus.images import ImageSet, ImageStream
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run, writing_run


class Detector:
    """Ensemble, aggregate, score and threshold: samples in, verdicts out.

    Args:
        ensemble: The members; put into eval mode.
        classes: Names of the classes; those without a name are numbered.
        backbone: The backbone of the training features, or its description, from which it is created when the first
            image is given. Without one the detector takes features only.
        aggregate: How labels and confidences follow from the members' logits; a name in `AGGREGATES`.
        engine: How the trunk runs, a name in `engines.ENGINES`; "onnx" is faster on CPUs. By default "eager", or
            "onnx-int8" if the training features come from it, which no other engine can then replace.
        threshold: The calibration.
        trained_on: Fingerprints of the training features ("train") and images ("images").
        training: The settings of the training, for the model card.

    Attributes:
        run: The run that it was loaded from, if any.

    Raises:
        DissensusError: If the aggregate is unknown, or the number of classes does not fit the ensemble.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        classes: Sequence[str] = (),
        *,
        backbone: Backbone | Mapping[str, Any] | None = None,
        aggregate: str = "prediction",
        engine: str | None = None,
        threshold: Threshold | None = None,
        trained_on: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        aggregates.of_kind("logits").check(aggregate)
        self.members = Members(ensemble, backbone, engine)
        self.ensemble, self.backbone_info = ensemble, self.members.backbone_info
        self.classes = class_names(classes, ensemble.classes)
        self.aggregate, self.threshold = aggregate, threshold
        self.trained_on, self.training = dict(trained_on or {}), dict(training or {})
        self.run: Run | None = None

    @classmethod
    def load(
        cls, run: PathLike, *, calibrated: bool = True, engine: str | None = None, device: torch.device | str = "cpu"
    ) -> Detector:
        """Load the detector of a run folder; of a joined run, one on all its backbones.

        Args:
            run: A run folder.
            calibrated: Load the calibration too, if the run has one; False to calibrate again.
            engine: How the trunk runs, see `Detector`.
            device: Where to run.

        Raises:
            RunError: If there is no finished run, or it is damaged.
        """
        opened = Run.open(run)
        settings = opened.settings
        detector = cls(
            Ensemble.load(opened.ensemble_folder),
            settings["classes"],
            backbone=settings.get("backbone"),
            engine=engine,
            trained_on={key: settings.get(key) for key in ("train", "images")},
            training={**opened.info.settings, "tail": settings["tail"]},
        )
        detector.run = opened
        if calibrated:
            detector.threshold = Threshold.load(opened.folder, detector.identity)
        return detector.to(device)

    @classmethod
    def from_pretrained(
        cls,
        where: PathLike,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: PathLike | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
    ) -> Detector:
        """Load a detector that `save_pretrained`, `push_to_hub` or `dissensus export --to hub` wrote.

        Without a connection, what the hub's cache has is used.

        Args:
            where: Its folder, or OWNER/NAME on the Hugging Face hub.
            revision: Branch, tag or commit of the repository; None: main.
            token: For a private repository; None or True: that of `hf auth login` or HF_TOKEN; False: none.
            cache_dir: Where to keep what is fetched; None: the hub's cache.
            force_download: Fetch what the cache has, too.
            local_files_only: Use the cache alone.

        Raises:
            RunError: If there is no such detector or no access to it, or it is damaged.
        """
        return cls(
            **pretrained.read(
                where, revision=revision, token=token, cache_dir=cache_dir, force_download=force_download,
                local_files_only=local_files_only,
            )
        )  # fmt: skip

    def save_pretrained(
        self, save_directory: PathLike, *, license: str | None = None, datasets: Sequence[str] = ()
    ) -> None:
        """Write a folder with all that `from_pretrained` needs, trunk included, and a model card.

        The card has the results of `dissensus evaluate` if the detector is that of a run. All files are safetensors,
        JSON or Markdown.

        Args:
            save_directory: A new or empty folder.
            license: Of the weights, for the card, such as "mit".
            datasets: Names on the hub of the data sets that it was trained on, for the card.

        Raises:
            RunError: If the folder cannot be written, or the detector joins several backbones.
        """
        out = place(save_directory)
        with writing(out):
            pretrained.write(self, out, f"OWNER/{out.name}", license=license, datasets=datasets)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        license: str | None = None,
        datasets: Sequence[str] = (),
    ) -> CommitInfo:
        """Push what `save_pretrained` writes to the Hugging Face hub, in one commit.

        The repository and the branch are created if they do not exist. A detector that was there before is replaced,
        model card included; other files stay.

        Args:
            repo_id: OWNER/NAME; or NAME, which belongs to the user.
            commit_message: Of the commit; None: one that names the version of Dissensus.
            private: Whether a new repository is private; None: as its owner has set.
            token: The user's; None: that of `hf auth login` or HF_TOKEN.
            branch: To push to; None: main.
            create_pr: Open a pull request instead.
            license: Of the weights, for the card, such as "mit".
            datasets: Names on the hub of the data sets that it was trained on, for the card.

        Returns:
            The URL of the commit, with `pr_url` and more as attributes.

        Raises:
            RunError: If the name is invalid, nobody is logged in, or the hub cannot be reached or refuses the push.
        """
        return pretrained.push(
            self, repo_id, commit_message=commit_message, private=private, token=token, branch=branch,
            create_pr=create_pr, license=license, datasets=datasets,
        )  # fmt: skip

    def save(self, run: PathLike) -> None:
        """Save the calibration in the folder of the run that the ensemble is from.

        Raises:
            DissensusError: If the detector is not calibrated, or the run holds another ensemble.
        """
        if self.threshold is None:
            raise DissensusError("only a calibrated detector can be saved; this one is not: call calibrate first")
        opened = Run.open(run)
        there, names = self._identity_of(Ensemble.load(opened.ensemble_folder)), self.threshold.scores
        if there.using(names) != self.identity.using(names):
            raise RunError(f"a calibration is saved with its own run; {run} holds another ensemble: choose its folder")
        with writing_run(opened.folder):
            self.threshold.save(opened.folder, self.identity)

    def __repr__(self) -> str:
        rule, info = self.threshold, self.backbone_info
        parts = [
            f"{len(self.ensemble)} members",
            f"{len(self.classes):,} classes",
            f"score {self.score_name}",
            "not calibrated" if rule is None else f"calibrated at {100 * rule.false_alarms:.3g}% false alarms",
            "features only" if info is None else f"backbone {info['name']}{_size(info)}",
        ]
        return f"Detector({', '.join(parts)})"

    @property
    def identity(self) -> Identity:
        """Fingerprints of what a calibration depends on: the members, the backbone and the fitted scores."""
        return self._identity_of(self.ensemble)

    def _identity_of(self, ensemble: Ensemble) -> Identity:
        backbone = (self.backbone_info or {}).get("fingerprint")
        return Identity(ensemble=ensemble.fingerprint, backbone=backbone, scores=ensemble.score_digests)

    @property
    def score_name(self) -> str:
        """The score, or the combination of scores, as an expression; without a calibration, a single one."""
        if self.threshold is not None:
            return self.threshold.name
        return expressions.default_score(self.ensemble.fitted, alone=True)  # there is nothing to combine several by

    def to(self, device: torch.device | str) -> Detector:
        """Move the detector to a device."""
        self.members.to(device)
        return self

    @property
    def backbone(self) -> Backbone:
        """The frozen trunk and its preprocessing; raises `DissensusError` if the detector takes features only."""
        return self.members.backbone

    def calibrate(
        self,
        samples: Samples,
        false_alarms: float = 0.05,
        score: str | Sequence[str] | None = None,
        *,
        by_class: bool = False,
        progress: bool = False,
    ) -> Detector:
        """Set the threshold so that at most a share `false_alarms` of ID samples is called out.

        Args:
            samples: ID samples that were not trained on, in any form that `predict` takes; labels are not used.
            false_alarms: The rate to guarantee for samples like these; see `Threshold.promise`.
            score: A name in `SCORES`; or several, whose conformal p-values are combined, such as "2*mahalanobis+pds" or
                a list. None: `DEFAULT_SCORE`, if the ensemble has its fitted scores and there are enough samples for a
                combination; else gaussian, or pds without fitted scores. Of several backbones, fitted scores are
                computed on each, or on one: "mahalanobis@lite0".
            by_class: Set one threshold per predicted class, so that the rate holds within each.
            progress: Show a progress bar if stderr is a terminal.

        Returns:
            The detector itself.

        Raises:
            DissensusError: If the score is unknown, or the samples cannot be used or are too few for the rate.

        Warns:
            DissensusWarning: If the samples are the training data.
        """
        self.threshold = _calibration.threshold(self, samples, false_alarms, score, by_class, progress)
        return self

    def was_trained_on(self, samples: object) -> bool:
        """Whether a `FeatureSet` or `ImageSet` is known to be the training data."""
        train, images = self.trained_on.get("train"), self.trained_on.get("images")
        if isinstance(samples, FeatureSet | JoinedFeatures):
            return samples.fingerprint == train or (images is not None and samples.images == images)
        return isinstance(samples, ImageSet) and samples.fingerprint == images

    def predict(self, samples: Samples, *, progress: bool = False) -> Verdicts:
        """Predict label, confidence, score, p-value, verdict and votes of every sample.

        Args:
            samples: One of

                - a path: an image, a folder, a list (.txt), a table (.csv, .tsv), a .tar, or a feature folder;
                - an image: PIL, or a uint8 array (H, W, 3);
                - a list of paths (folders stand for every image below them), or of images;
                - images as an `ImageSet` or a uint8 array (N, H, W, 3);
                - features as a `FeatureSet`, an array or tensor (N, ...), or one row (D,); for a joined run a list of
                  `FeatureSet`s, one per backbone;
                - a DataFrame: with a column of image paths named image, path, file or filename, those images; otherwise
                  every column is a feature, and must be numeric.
            progress: Show a progress bar if stderr is a terminal.

        Raises:
            DissensusError: If the samples are none of these, do not fit the ensemble, or an image cannot be read;
                `stream` returns a verdict with an error for such an image and continues.
        """
        resolved = resolve(samples)
        parts = [self.predict_outputs(outputs) for outputs in self.members.outputs(resolved, progress)]
        return Verdicts.concatenate(parts).named(resolved.names)

    def stream(
        self,
        samples: Samples | ImageStream | Iterable[PathLike],
        *,
        batch_size: int = BATCH,
        workers: int | None = None,
        shards: Sequence[int] | None = None,
    ) -> Iterator[Verdict]:
        """Predict samples as they come, in order and in bounded memory.

        Args:
            samples: Paths, as a list or an iterator without end; one path; an `ImageSet`, an `ImageStream` or a
                `FeatureSet`.
            batch_size: Images per batch; each worker prefetches two batches.
            workers: Processes that read images; None: one per core, at most 8; 0: none.
            shards: Of an `ImageStream`, the shards to read; None: all.

        Yields:
            One verdict per sample; an image that cannot be read has an `error`.
        """
        return _streaming.stream(self, samples, batch_size, workers, shards)

    def predict_outputs(self, outputs: Outputs) -> Verdicts:
        """Return the verdicts that follow from the members' logits (M, B, C) and the features (B, ...)."""
        return _predicting.verdicts(self, outputs)


def _size(info: Mapping[str, Any]) -> str:
    sizes = dict.fromkeys(part["size"] for part in joined.parts_of(info) or [info])
    return f" at {' and '.join(map(str, sizes))} px"
