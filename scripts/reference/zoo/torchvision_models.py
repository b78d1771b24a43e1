"""Models of torchvision: classifiers, segmentation, video, optical flow, detectors."""
import torch
import torchvision
from torch import nn

from zoo.common import Example, Positional, entry, image

CLASSIFIERS = {
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64, "googlenet": 64,
    "inception_v3": 96, "mnasnet0_5": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, 
    "regnet_y_400mf": 64, "resnet18": 64, "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64,
    "swin_v2_t": 64, "vgg11_bn": 32, "vit_b_32": 224, "maxvit_t": 224,
}
SEGMENTERS = ["deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"]
VIDEO = {"r3d_18": (4, 32), "mvit_v2_s": (16, 224), "swin3d_t": (4, 32), "s3d": (16, 224)}
DETECTORS = ["ssdlite320_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"]


class Detector(nn.Module):
    """A detector on a batch of images of one size."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(list(x.unbind(0)))


def classifier(name, size):
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = torchvision.models.get_model(name, weights=None, **more)
    return Example(Positional(model), image(size))


def segmenter(name):
    more = {} if name.startswith("lraspp") else {"weights_backbone": None}
    return Example(Positional(torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=5)), image(64))


def video(name, frames, size):
    model = torchvision.models.get_model(name, weights=None, num_classes=10)
    return Example(Positional(model), lambda batch: {"x": torch.randn(batch, 3, frames, size, size)})


def flow():
    model = torchvision.models.get_model("raft_small", weights=None)

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, first, second):
            return self.model(first, second, num_flow_updates=2)

    return Example(Flow(), lambda batch: {"first": torch.rand(batch, 3, 128, 128), "second": torch.rand(batch, 3, 128, 128)}, dynamic=False)


def detector(name):
    # Small features keep the boxes of a random model inside of the image.
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=4, **sizes(name))
    return Example(Detector(model), lambda batch: {"x": torch.rand(1, 3, 96, 96)}, dynamic=False)


def sizes(name):
    if name.startswith("ssdlite"):
        return {"topk_candidates": 20, "detections_per_img": 10}
    if name.startswith("fasterrcnn"):
        return {"min_size": 96, "max_size": 96, "box_detections_per_img": 10, "rpn_post_nms_top_n_test": 20}
    return {"min_size": 96, "max_size": 96, "detections_per_img": 10, "topk_candidates": 20}


for name, size in CLASSIFIERS.items():
    entry("torchvision", name, lambda name=name, size=size: classifier(name, size))
for name in SEGMENTERS:
    entry("torchvision", name, lambda name=name: segmenter(name))
for name, (frames, size) in VIDEO.items():
    entry("torchvision", name, lambda name=name, frames=frames, size=size: video(name, frames, size))
entry("torchvision", "raft_small", flow)
for name in DETECTORS:
    entry("torchvision", name, lambda name=name: detector(name))
