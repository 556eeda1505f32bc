"""Train the digit classifier of the demo, and export it: ``digits.pte`` and ``digits/*.png``.

Needs the ``test`` extra (scikit-learn, executorch); ``make demo-train`` runs it, in some seconds.
The demo itself needs neither: what this script writes is in the repository.

scikit-learn's digits are 8 x 8 images with values 0 to 16. They are stored as grey PNG files of
0 to 255, and the network takes a pixel as a number from 0 to 1, which is the PNG's value / 255.
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

HERE = Path(__file__).parent
PROGRAM = HERE / "digits.pte"
IMAGES = HERE / "digits"
SEED = 0
EPOCHS = 40
BATCH = 64


class DigitNet(nn.Module):
    """Two convolutions and a linear layer: ``(1, 1, 8, 8)`` pixels to 10 probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.softmax(self.head(self.features(pixels)), dim=-1)


def load_bytes() -> tuple[Tensor, Tensor]:
    """Return the images as PNG bytes ``(n, 8, 8)`` and their labels."""
    digits = load_digits()
    grey = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8)
    return grey, torch.from_numpy(digits.target)


def as_pixels(grey: Tensor) -> Tensor:
    return grey.unsqueeze(1).float() / 255


def train(net: DigitNet, pixels: Tensor, labels: Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(pixels)).split(BATCH):
            optimizer.zero_grad()
            scores = net.head(net.features(pixels[index]))
            nn.functional.cross_entropy(scores, labels[index]).backward()
            optimizer.step()
        scheduler.step()


def export(net: DigitNet) -> bytes:
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    with torch.no_grad():
        exported = torch.export.export(net, (torch.zeros(1, 1, 8, 8),))
        edge = to_edge_transform_and_lower(
            exported, partitioner=[], compile_config=EdgeCompileConfig(_check_ir_validity=False)
        )
        return edge.to_executorch().buffer


def save_images(grey: Tensor, labels: Tensor) -> None:
    """Write the first test image of each digit as ``<digit>.png``."""
    IMAGES.mkdir(exist_ok=True)
    for digit in range(10):
        first = int((labels == digit).nonzero()[0])
        Image.fromarray(grey[first].numpy()).save(IMAGES / f"{digit}.png")


def main() -> None:
    torch.manual_seed(SEED)
    grey, labels = load_bytes()
    kept, held = train_test_split(
        torch.arange(len(grey)).numpy(), test_size=0.25, random_state=SEED, stratify=labels.numpy()
    )
    net = DigitNet()
    train(net, as_pixels(grey[kept]), labels[kept])
    net.eval()
    with torch.no_grad():
        right = int((net(as_pixels(grey[held])).argmax(-1) == labels[held]).sum())
    print(f"{right} of {len(held)} test images right ({right / len(held):.1%})")
    if right / len(held) <= 0.97:
        raise SystemExit("the demo promises more than 97 %: nothing was written")
    PROGRAM.write_bytes(export(net))
    save_images(grey[held], labels[held])
    print(f"wrote {PROGRAM.name} ({PROGRAM.stat().st_size} bytes) and {IMAGES.name}/*.png")


if __name__ == "__main__":
    main()
