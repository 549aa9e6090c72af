"""What a peer may claim, at most. Checked before anything is allocated.

One place, so that the numbers can be discussed. They are far above what the package itself produces and far below what
would hurt a machine by the claim alone.
"""

from __future__ import annotations

#: frames of one message. Payloads have a few frames each and a message at most some thousands of payloads; a
#: header of this many lengths is 8 MiB.
MAX_FRAMES = 2**20

#: bytes of one frame. Frames are cut at 64 MiB by default and users raise that at most to some GiB; anything above 64 GiB is
#: not a length but garbage, or text: "GET / HT" reads as 6e18.
MAX_FRAME_BYTES = 2**36

#: bytes of one message: results of hundreds of GiB do not fit one worker
MAX_MESSAGE_BYTES = 2**40

#: nesting of containers in the control part; msgpack itself stops at 512 when packing
MAX_NESTING = 512
