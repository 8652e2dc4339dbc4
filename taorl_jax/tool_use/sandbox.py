"""The sandbox of a run: the services that the config names, or one of our own."""

import contextlib
import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from taorl_jax.tool_use.local_sandbox import LocalSandbox
from taorl_jax.tool_use.result import SandboxFailure
from taorl_jax.tool_use.sandbox_client import SandboxClient


@dataclasses.dataclass(frozen=True)
class Sandbox:
    """A client of healthy services, and what to tell people of them."""

    client: SandboxClient
    description: str


@contextlib.contextmanager
def open_sandbox(sandbox: ConfigDict, log_path) -> Iterator[Sandbox]:
    """Connects to `sandbox.urls`, or starts a service and stops it afterwards.

    Raises:
      SandboxDown: a service does not answer; the message has its address.
      SandboxFailure: it answers, but does not run code.
    """
    with contextlib.ExitStack() as stack:
        urls = list(sandbox.urls)
        if not urls:
            urls = [stack.enter_context(LocalSandbox(sandbox.lanes, sandbox.min_isolation, log_path)).url]
        client = stack.enter_context(
            SandboxClient(
                urls,
                wall_s=sandbox.wall_s,
                memory_mb=sandbox.memory_mb,
                min_isolation=sandbox.min_isolation,
                max_concurrent=sandbox.concurrency,
                patience_s=sandbox.patience_s,
            )
        )
        tiers = sorted({health["isolation"] for health in client.check()})
        trial = client.submit("print(6 * 7)").result()
        if (trial.outcome, trial.stdout) != ("ok", "42\n"):
            raise SandboxFailure(f"the sandbox at {', '.join(urls)} is there, but can't run code: {trial}")
        yield Sandbox(client, f"{', '.join(urls)} (isolation: {', '.join(tiers)})")
