"""Asks a running cluster one question with the official OpenAI client, and prints the answer as it comes.

.venv/bin/python demo/ask.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse
import sys

from openai import APIError, OpenAI

from vdisagg.cluster import record
from vdisagg.errors import Error, Failure


def main() -> int:
    """Exit code 1 when there is no cluster, or no answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("question")
    parser.add_argument("--cluster", default="demo", help="its name (default: demo)")
    args = parser.parse_args()
    try:
        running = record.read(record.state_root() / args.cluster)
        if running is None:
            raise Failure(f"cluster {args.cluster} is not up; next: make demo")
        front_end = running.plan.front_end
        client = OpenAI(base_url=f"{front_end.url}/v1", api_key="none")
        print(f"> {args.question}")
        stream = client.chat.completions.create(
            model=front_end.served_model_name,
            messages=[{"role": "user", "content": args.question}],
            max_completion_tokens=120,
            temperature=0,
            stream=True,
        )
        for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()
    except (Error, APIError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
