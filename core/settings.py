"""The environment, read once into one frozen record, and a person's own values of constants."""

import functools
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.environment import ROOT
from core.errors import InvalidArgument
from core.records import Record

Toolset = Literal[
    "plan", "deploy", "models", "observe", "ask", "benchmark", "diagnose", "quota", "tpu",
    "help", "compat", "all",
]  # fmt: skip


def _split(said: Any) -> Any:
    return tuple(filter(None, map(str.strip, said.split(",")))) if isinstance(said, str) else said


_COMMAS: Final = BeforeValidator(_split)


class Settings(BaseSettings):
    """Read once, at start-up. `set_env.sh` exports the same names."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_file=ROOT / ".env",
        env_ignore_empty=True,
        extra="ignore",
        use_attribute_docstrings=True,
        enable_decoding=False,
    )

    vllm_target: str | None = None
    """The target that tools use when none is named."""
    model_name: str | None = None
    """The model that `deploy_vllm` serves when none is named: a Hub id or a folder."""
    vllm_base_url: str | None = None
    """An endpoint of your own, such as http://host:8000; adds the target `endpoint`."""
    vllm_api_key: SecretStr | None = None
    """The key of `VLLM_BASE_URL`. Deployments made here get keys of their own."""
    vllm_executable: str | None = None
    """The `vllm` command for the local target; default `.vllm/bin/vllm`, then the PATH."""
    engine: Literal["auto", "real", "simulated"] = "auto"
    """The local engine: real vLLM, the simulated one, or whichever is there."""
    hf_token: SecretStr | None = None
    """Only for gated models of the Hugging Face Hub."""
    registry_username: str | None = None
    """An account at `REGISTRY_SERVER` that images are pulled with on Azure: Docker Hub limits pulls
    without one."""
    registry_password: SecretStr | None = None
    """Its password or access token; kept in the Key Vault."""
    registry_server: str = "docker.io"
    """The only registry that this account is shown to."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """How many accelerators one replica is spread over when a call does not say."""
    accelerator_type: str | None = None
    """The accelerator to prefer where a target offers several, such as v6e."""
    google_cloud_project: str | None = None
    """The Google Cloud project that deployments go to."""
    google_cloud_location: str | None = None
    """The region of Cloud Run, such as us-central1."""
    google_cloud_zone: str | None = None
    """The zone of Cloud TPU, such as us-east5-b."""
    google_allowed_addresses: Annotated[tuple[str, ...], _COMMAS] = ()
    """Who may call a deployment on Cloud TPU: addresses or CIDR ranges, separated by commas;
    default the address that this machine is seen with."""
    google_api_key: SecretStr | None = None
    """Only for `make prices`: reads Google's Cloud Billing Catalog."""
    bucket_name: str | None = None
    """The Cloud Storage bucket that holds weights."""
    azure_subscription_id: str | None = None
    """The Azure subscription that deployments go to."""
    azure_resource_group: str | None = None
    """The Azure resource group that holds them; default vllm-devops."""
    azure_location: str | None = None
    """The Azure region, such as westus3."""
    azure_containerapps_environment: str | None = None
    """The managed environment that apps run in; default one of our own."""
    azure_allowed_addresses: Annotated[tuple[str, ...], _COMMAS] = ()
    """Who may call a deployment on Azure: addresses or CIDR ranges, separated by commas; default
    the address that this machine is seen with."""
    azure_keyvault_name: str | None = None
    """The Key Vault that holds secrets; default one of our own."""
    azure_storage_account: str | None = None
    """The storage account that holds weights; default one of our own."""
    azure_log_analytics_workspace_id: str | None = None
    """The Log Analytics workspace that gets the logs, by its GUID; default one of our own."""
    google_service_account: str | None = None
    """The service account to impersonate where your own login cannot mint ID tokens."""
    analyst_base_url: str | None = None
    """Another OpenAI-compatible endpoint, such as http://host:8000, that reads logs in place of a
    deployment that has failed itself."""
    analyst_api_key: SecretStr | None = None
    """The key of `ANALYST_BASE_URL`."""
    analyst_model: str | None = None
    """The model to ask there; default the first that it serves."""
    rehearsal: bool = False
    """On: every cloud is simulated on this machine, and its own engine too unless ENGINE=real:
    nothing real is touched or paid."""
    pause_scale: float = Field(default=1.0, gt=0, le=1)
    """Below 1 the server looks again so much sooner; for tests and rehearsals."""
    patience_scale: float = Field(default=1.0, gt=0, le=1)
    """Below 1 the server gives up so much sooner; for tests and rehearsals."""
    read_only: bool = False
    """On: tools may plan and read, never create, change or delete."""
    toolsets: Annotated[tuple[Toolset, ...], _COMMAS] = ()
    """Groups of tools to add to the default ones, separated by commas; `all` is everything."""
    confirm: Literal["ask", "token", "deny", "never"] = "ask"
    """Who agrees to destructive and paid work: the human where the client can ask, else a
    one-time token; always the token; nobody without a human; or nobody is asked."""
    mcp_bearer_token: SecretStr | None = None
    """Only for `server.py --http`: what clients must send as `Authorization: Bearer`; needed where
    others than this machine can reach it."""
    mcp_allowed_hosts: Annotated[tuple[str, ...], _COMMAS] = ()
    """Only for `server.py --http`: the names that clients may call it by, separated by commas."""
    vllm_devops_state_dir: Path | None = None
    """Where journal and deployments are kept; default the user's state folder."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret value that must never be seen in an answer."""
        given = (value.get_secret_value() for _, value in self if isinstance(value, SecretStr))
        urls = map(_password, (self.vllm_base_url, self.analyst_base_url))
        return tuple(filter(None, (*given, *urls)))


def _password(url: str | None) -> str | None:
    try:
        return urlsplit(url or "").password
    except ValueError:
        return None


FILE: Final = "overrides.toml"
ROOMS: Final = ("aca", "cloud_run", "tpu")
"""The clouds whose constants can be replaced: the tables of the file."""

R = TypeVar("R", bound=Record)

_place: dict[str, Path] = {}
_shipped: dict[str, tuple[Path, type[Record]]] = {}


class _Read(NamedTuple):
    """One cloud's constants, and what the file did to them."""

    rules: Record
    changes: tuple[str, ...] = ()
    problem: str | None = None
    """Why the file is left aside, in which case `rules` are those that are shipped."""


def use(folder: Path) -> None:
    """Look for the file in this folder: a process has one state folder."""
    _place["file"] = folder / FILE


def read(room: str, shipped: Path, kind: type[R]) -> R:
    """Return a cloud's constants; those that are shipped where the file cannot be used.

    A file that is wrong must not keep anybody from looking and removing: only a plan refuses it.
    """
    _shipped[room] = (shipped, kind)
    found = _read(room).rules
    if not isinstance(found, kind):
        raise TypeError(f"{room} has other rules.")
    return found


def changes(room: str) -> tuple[str, ...]:
    """Return what the file replaces of a cloud's constants, each with both values.

    Raises:
        InvalidArgument: The file cannot be used.
    """
    if room not in _shipped:
        return ()
    found = _read(room)
    if found.problem:
        raise InvalidArgument(
            f"{_place['file']} cannot be used: {found.problem}.",
            fix="Correct it or take it away; its tables are written like the rules.toml files.",
        )
    return found.changes


def _read(room: str) -> _Read:
    shipped, kind = _shipped[room]
    file = _place.get("file")
    try:
        stamp = file.stat().st_mtime_ns if file else 0
    except OSError:
        stamp = 0
    return _merged(room, shipped, kind, file if stamp else None, stamp)


@functools.lru_cache(maxsize=16)
def _merged(room: str, shipped: Path, kind: type[Record], file: Path | None, _stamp: int) -> _Read:
    rows = tomllib.loads(shipped.read_text("utf-8"))
    plain = kind.model_validate(rows)
    if file is None:
        return _Read(plain)
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        return _Read(plain, problem=str(exc).partition("\n")[0])
    if unknown := sorted(set(tables) - set(ROOMS)):
        return _Read(plain, problem=f"it has a table {unknown[0]}; its tables are {ROOMS}")
    own = tables.get(room, {})
    if not isinstance(own, dict):
        return _Read(plain, problem=f"{room} is no table")
    try:
        rules = kind.model_validate(_with(rows, own))
    except ValidationError as exc:
        row = exc.errors(include_url=False)[0]
        where = ".".join(map(str, (room, *row["loc"])))
        return _Read(plain, problem=f"{where}: {row['msg']}")
    differing = tuple(_differences(plain.model_dump(), rules.model_dump()))
    return _Read(rules, changes=tuple(f"{FILE}: {room}.{line}" for line in differing))


def _with(rows: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(rows)
    for name, value in own.items():
        below = merged.get(name)
        is_table = isinstance(value, dict) and isinstance(below, dict)
        merged[name] = _with(below or {}, value) if is_table else value
    return merged


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> Iterator[str]:
    for name, value in after.items():
        old, here = before.get(name), f"{path}{name}"
        if isinstance(value, dict) and isinstance(old, dict):
            yield from _differences(old, value, f"{here}.")
        elif value != old:
            yield f"{here} is {value} (shipped: {old})"


REHEARSAL: Final = "Rehearsal: simulated clouds, no money, no model; boots and waits are shortened."


class GooglePlane(Record):
    """The addresses of a simulated Google Cloud."""

    grpc: str
    """host:port of every gRPC API."""
    http: str
    """Base URL of the metadata server, of IAM credentials, and of the rehearsal's own controls."""
    storage: str
    """Base URL of Cloud Storage's JSON API."""
    pid: int
    programs: str = ""
    """Folder of the programs on the caller's machine, such as `{programs}/PROJECT/gcloud`."""


class AzurePlane(Record):
    """The addresses of a simulated Azure; all but `http` speak TLS with a certificate of `ca`."""

    arm: str
    """Base URL of Azure Resource Manager, and of the login that gives tokens for everything."""
    logs: str
    """Base URL of Log Analytics' queries, with the version."""
    vaults: str
    """Where Key Vaults are: NAME is at `{vaults}/NAME`."""
    storage: str
    """Where storage accounts are: NAME's files at `{storage}/file/NAME`."""
    http: str
    """Base URL of the rehearsal's own controls, of log streams, and of the echo of addresses."""
    ca: str
    """File with the certificate of the authority that signed for this machine."""
    pid: int
