"""Base classes of plugins, the plugins that the package itself sends around, and how workers and nannies keep theirs.

The classes are public as `distributed.diagnostics.plugin`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import uuid
import zipfile
from typing import Any, ClassVar

from distributed.core import error_message, maybe_await
from distributed.protocol import pickle

logger = logging.getLogger(__name__)


class SchedulerPlugin:
    """Called by the scheduler as things happen. All methods are optional to override; exceptions are logged and go no further."""

    idempotent: bool = False

    async def start(self, scheduler: Any) -> None:
        """When it is registered."""

    async def before_close(self) -> None:
        """Before the scheduler closes its connections."""

    async def close(self) -> None:
        """When the scheduler has closed, or the plugin is removed."""

    def update_graph(
        self,
        scheduler: Any,
        *,
        client: str,
        keys: set[Any],
        tasks: list[Any],
        annotations: dict[str, Any],
        priority: dict[Any, Any],
        stimulus_id: str,
        **kwargs: Any,
    ) -> None:
        """When tasks have arrived."""

    def restart(self, scheduler: Any) -> None:
        """When the cluster restarts."""

    def transition(
        self, key: Any, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """When a task has changed its state."""

    def add_worker(self, scheduler: Any, worker: str) -> Any:
        """When a worker has registered."""

    def remove_worker(self, scheduler: Any, worker: str, *, stimulus_id: str, **kwargs: Any) -> Any:
        """When a worker is gone."""

    def add_client(self, scheduler: Any, client: str) -> None:
        """When a client has connected."""

    def remove_client(self, scheduler: Any, client: str) -> None:
        """When a client is gone."""

    def log_event(self, topic: str, msg: Any) -> None:
        """When an event is published."""


class WorkerPlugin:
    """Set up on each worker, present and future."""

    idempotent: bool = False

    def setup(self, worker: Any) -> Any:
        """When it is added to a worker; may be async."""

    def teardown(self, worker: Any) -> Any:
        """When the worker closes or the plugin is removed; may be async."""

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """When a task on the worker has changed its state."""


class NannyPlugin:
    """Set up on each nanny, present and future."""

    idempotent: bool = False
    #: restart the worker when the plugin is added
    restart: bool = False

    def setup(self, nanny: Any) -> Any:
        """When it is added to a nanny; may be async."""

    def teardown(self, nanny: Any) -> Any:
        """When the nanny closes or the plugin is removed; may be async."""


def watches_transitions(plugin: Any) -> bool:
    """Whether a plugin has a `transition` of its own. The one of the base classes is not worth a call for each."""
    method = getattr(plugin, "transition", None)
    return method is not None and getattr(method, "__func__", None) not in (
        SchedulerPlugin.transition,
        WorkerPlugin.transition,
    )


class PluginHolder:
    """For servers that are given plugins by requests: adds and removes them."""

    #: by name
    plugins: dict[str, Any]
    #: the server's kind, for logs
    plugin_kind: ClassVar[str]

    def _plugins_changed(self) -> None:
        """After one was added or removed."""

    async def _plugin_is_set_up(self, name: str, plugin: Any) -> None:
        """After the setup of one."""

    async def _call_plugin(self, plugin: Any, method: str) -> None:
        function = getattr(plugin, method, None)
        if function is not None:
            await maybe_await(function(self))

    async def plugin_add(self, plugin: Any, name: str | None = None) -> dict[str, Any]:
        """Set a plugin up, pickled or not; one of the same name is replaced."""
        try:
            if isinstance(plugin, (bytes, bytearray, memoryview)):
                plugin = pickle.loads(plugin)
            name = name or getattr(plugin, "name", None) or f"{type(plugin).__name__}-{uuid.uuid4()}"
            if name in self.plugins:
                await self.plugin_remove(name)
            self.plugins[name] = plugin
            self._plugins_changed()
            await self._call_plugin(plugin, "setup")
            await self._plugin_is_set_up(name, plugin)
        except Exception as exc:  # user code
            logger.exception("The %s plugin %s failed to set up", self.plugin_kind, name)
            return dict(error_message(exc))
        return {"status": "OK"}

    async def plugin_remove(self, name: str) -> dict[str, Any]:
        """Tear a plugin down."""
        plugin = self.plugins.pop(name, None)
        self._plugins_changed()
        try:
            await self._call_plugin(plugin, "teardown")
        except Exception as exc:  # user code
            logger.exception("The %s plugin %s failed to tear down", self.plugin_kind, name)
            return dict(error_message(exc))
        return {"status": "OK"}


def install_upload(directory: str, filename: str, data: bytes, load: bool) -> list[Any]:
    """Write an uploaded file to a directory that is on ``sys.path``; import it if asked. Returns the modules."""
    path = os.path.join(directory, os.path.basename(filename))
    os.makedirs(directory, exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    if not load:
        return []
    name, extension = os.path.splitext(os.path.basename(filename))
    names = []
    if extension in (".py", ".pyc"):
        names = [name.split("-")[0] if extension == ".pyc" else name]
    elif extension in (".egg", ".zip", ".pyz"):
        if path not in sys.path:
            sys.path.insert(0, path)
        with zipfile.ZipFile(path) as archive:
            tops = {entry.split("/")[0] for entry in archive.namelist() if entry.endswith(".py")}
        names = [top.removesuffix(".py") for top in sorted(tops) if top.removesuffix(".py").isidentifier()]
    modules = []
    importlib.invalidate_caches()
    for module_name in names:
        known = sys.modules.get(module_name)
        try:
            modules.append(
                importlib.reload(known) if known is not None else importlib.import_module(module_name)
            )
        except Exception as exc:  # whatever the module does
            raise ImportError(f"the uploaded file {filename!r} cannot be imported: {exc!r}") from exc
    return modules


class _CarriesFile:
    """A file's name and content, read where the plugin is made."""

    def __init__(self, filepath: str, load: bool = True) -> None:
        self.filename = os.path.basename(filepath)
        self.load = load
        with open(filepath, "rb") as f:
            self.data = f.read()
        self.name = f"{type(self).__name__}-{self.filename}"

    async def deliver(self, server: Any) -> None:
        """Store the file at a worker or scheduler."""
        reply = await server.upload_file(filename=self.filename, data=self.data, load=self.load)
        if len(self.data) != reply["nbytes"]:
            raise RuntimeError(f"{self.filename} arrived with {reply['nbytes']} of {len(self.data)} bytes")


class UploadFile(_CarriesFile, WorkerPlugin):
    """Carries a file to all workers."""

    async def setup(self, worker: Any) -> None:
        await self.deliver(worker)


class SchedulerUploadFile(_CarriesFile, SchedulerPlugin):
    """Carries a file to the scheduler."""

    async def start(self, scheduler: Any) -> None:
        await self.deliver(scheduler)


for _cls in (SchedulerPlugin, WorkerPlugin, NannyPlugin, UploadFile, SchedulerUploadFile):
    _cls.__module__ = "distributed.diagnostics.plugin"
del _cls
