"""What a client may say of how its request is served: words that bench sends and the controller takes out.

They stand in a completion's or chat's body, `"vllm_xargs": {"vdisagg_mode": "colocated"}`.
"""

from __future__ import annotations

from typing import Final

KEY: Final = "vdisagg_mode"
PD: Final = "pd"
"""Over a prefill and a decode engine, as far as the request allows; what holds where nothing is said."""
COLOCATED: Final = "colocated"
"""By one engine from the prompt to the end, whichever has least to do, without a hand-over."""
