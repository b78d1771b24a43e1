"""Image models of timm, one of each family."""
import timm

from zoo.common import Example, Positional, entry, image

# Name: sides of the image, or None for what the model was made for.
MODELS = {
    "beit_base_patch16_224": None, "cait_xxs24_224": 64, "coat_lite_tiny": None, "coatnet_pico_rw_224": None, "convit_tiny": None,
    "convnextv2_atto": 64, "crossvit_tiny_240": None, "davit_tiny": 64, "deit_tiny_distilled_patch16_224": 64, 
    "edgenext_xx_small": 64, "efficientformerv2_s0": 224, "efficientvit_b0": 64, "efficientvit_m0": 224, "eva02_tiny_patch14_224": 56,
    "fasternet_t0": 64, "fastvit_t8": 64, "focalnet_tiny_srf": 64, "gcvit_xxtiny": 224, "ghostnet_050": 64, "hiera_tiny_224": 224,
    "hrnet_w18_small": 64, "inception_next_atto": 64, "levit_128s": 224, "mambaout_femto": 64, "mixer_s32_224": None,
    "mobilenetv4_conv_small_050": 64, "mobilevitv2_050": 64, "mvitv2_tiny": 64, "nfnet_f0": 64, "pit_xs_224": None, "poolformer_s12": 64, "pvt_v2_b0": 64,
    "repvit_m0_9": 64, "rexnet_100": 64, "swiftformer_xs": 224, "swinv2_cr_tiny_224": None, "tiny_vit_5m_224": None, "twins_svt_small": 64,
    "vit_relpos_small_patch16_224": 64, "xcit_nano_12_p16_224": 64,
}
TAKES_SIZE = ("cait", "deit", "eva02", "vit_", "beit")
# Fewer layers of those that are large.
SMALLER = {
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 96, "num_heads": 4}, "cait_xxs24_224": {"depth": 3},
    "eva02_tiny_patch14_224": {"depth": 2}, "vit_relpos_small_patch16_224": {"depth": 2}, "deit_tiny_distilled_patch16_224": {"depth": 2},
}


def build(name, size):
    more = dict(SMALLER.get(name, {}))
    if size and name.startswith(TAKES_SIZE):
        more["img_size"] = size
    model = timm.create_model(name, pretrained=False, num_classes=10, **more)
    return Example(Positional(model), image(size or model.default_cfg["input_size"][-1]))


for name, size in MODELS.items():
    entry("timm", name, lambda name=name, size=size: build(name, size))
