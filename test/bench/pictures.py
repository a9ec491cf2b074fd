"""SIFT descriptors for the `sift` set of data.py, by OpenCV, of the pictures
that two Debian packages have as wallpapers.

apt fetches the packages from the archive that this machine is configured for;
they stay under build/ (git-ignored)."""
import glob
import os
import re

from texts import unpacked

FOLDERS = {
    "plasma-workspace-wallpapers": "usr/share/wallpapers/*/contents/images",
    "mate-backgrounds": "usr/share/backgrounds/mate/*",
}
MOST = 40000                    # descriptors of a picture, the strongest ones
FEW = 1000                      # a picture that has fewer is a pattern


def width(path):
    """As its name says; 0 if that does not."""
    found = re.match(r"(\d+)x\d+\.", os.path.basename(path))
    return int(found.group(1)) if found else 0


def pictures():
    """Paths: of a wallpaper in several sizes one, the largest of those that
    have nothing but a size for a name."""
    found = []
    for package, folders in FOLDERS.items():
        for folder in sorted(glob.glob(os.path.join(unpacked(package),
                                                    folders))):
            paths = [p for p in sorted(glob.glob(folder + "/*"))
                     if not os.path.islink(p) and
                     p.endswith((".jpg", ".png")) and
                     not re.search(r"_\d+x\d+\.", p)]
            sized = [p for p in paths if width(p)]
            if sized:
                found.append(max(sized, key=width))
            found += [p for p in paths if not width(p)]
    return found


def descriptors():
    """float32 [n][128], each from 0 to 255, no two the same, sorted."""
    import cv2
    import numpy as np
    sift = cv2.SIFT_create(nfeatures=MOST)
    parts = []
    for path in pictures():
        gray = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
        if gray is None:
            continue
        part = sift.detectAndCompute(gray, None)[1]
        if part is not None and len(part) >= FEW:
            parts.append(part)
    return np.unique(np.concatenate(parts), axis=0)
