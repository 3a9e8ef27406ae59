"""Small pictures that a page holds itself."""

import base64
import io

from torch import Tensor


def data_uri(image: Tensor, side: int) -> str:
    """A thumbnail (3, h, w), its longer side so many pixels, as an address that holds it. Small images are enlarged
    without blurring them and kept exactly; larger ones are JPEG, a tenth of the bytes."""
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    picture = picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
    buffer, form = io.BytesIO(), "PNG" if scale > 1 else "JPEG"
    picture.save(buffer, form, optimize=True, quality=80)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
