"""An endpoint of the owner's own: looked at and asked, never made or removed here."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final, NoReturn

from backends.base import World
from core.address import KEY_HEADER
from core.endpoint import Endpoint
from core.errors import DeploymentNotFound, OpsError, Unsupported
from core.records import (
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    Failure,
    ModelShape,
    Plan,
    Preflight,
    State,
    Target,
)

NAME: Final = "endpoint"
"""Of the target and of the one deployment on it."""
_BEFORE: Final = datetime.fromtimestamp(0, UTC)
"""When it was made is not known, only that it is the same each time that it is looked at: a yes is
about what was shown, and what was asked of it before counts."""


class EndpointBackend:
    """What `VLLM_BASE_URL` names."""

    def __init__(self, target: Target, world: World) -> None:
        self.target = target
        base_url = world.settings.vllm_base_url or ""
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._api_key = world.settings.vllm_api_key
        self._answered_at: datetime | None = None

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:  # noqa: ARG002  contract
        """Refuse: it is somebody else's to make."""
        self._refuse()

    async def check(self, plan: Plan) -> Preflight:  # noqa: ARG002  contract
        """Refuse: there is no plan for it."""
        self._refuse()

    async def apply(self, plan: Plan) -> Deployment:  # noqa: ARG002  contract
        """Refuse: it is somebody else's to make."""
        self._refuse()

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:  # noqa: ARG002  contract
        """Refuse: it is somebody else's to remove."""
        self._require(name)
        self._refuse()

    async def list(self) -> Sequence[Deployment]:
        """Give the one there is."""
        return [await self.describe(NAME)]

    async def describe(self, name: str) -> Deployment:
        """Say whether it answers and what it serves."""
        self._require(name)
        try:
            async with aclosing(Endpoint(await self.access(name))) as endpoint:
                return await self._look(endpoint)
        except OpsError as exc:
            cause = f"{exc.summary} {exc.cause}".strip()
            return self._deployment(
                State.UNKNOWN, failure=Failure(code=exc.code, cause=cause, fix=exc.fix)
            )

    async def access(self, name: str) -> Access:
        """Give the address and key that the settings hold."""
        self._require(name)
        tls = self._base_url.startswith("https://")
        keyed = "with a key" if self._api_key else "without a key"
        open_paths = (
            "; vLLM's own key protects /v1 alone, and without a proxy before it POST /invocations"
            " computes for everybody"
            if self._api_key
            else ""
        )
        return Access(
            base_url=self._base_url,
            api_key=self._api_key,
            header_commands={KEY_HEADER: 'printf %s "$VLLM_API_KEY"'} if self._api_key else {},
            protection=f"Asked {keyed} over {'TLS' if tls else 'plain HTTP'}{open_paths}.",
        )

    async def _look(self, endpoint: Endpoint) -> Deployment:
        models = await endpoint.models()
        version = await endpoint.version()
        first = models[0] if models else None
        if first is None:
            failure = Failure(
                code="NO_MODEL", cause="It lists no model.", fix="Look at its own log."
            )
            return self._deployment(State.UNKNOWN, failure=failure)
        if self._answered_at is None:
            await endpoint.say_one_token(first.id)
            self._answered_at = datetime.now(UTC)
        found = self._deployment(State.READY, engine=f"vLLM {version}" if version else "not known")
        return found.model_copy(
            update={
                "model": first.root or first.id,
                "served_model_name": first.id,
                "since": self._answered_at,
                "replicas": 1,  # at least: what they cost is not known, and not nothing
            }
        )

    def _deployment(
        self, state: State, *, engine: str = "not known", failure: Failure | None = None
    ) -> Deployment:
        now = datetime.now(UTC)
        return Deployment(
            name=NAME,
            target=self.target.name,
            state=state,
            since=now,
            model="not known",
            served_model_name="not known",
            engine=engine,
            url=self._base_url,
            revision="not ours",
            created_at=_BEFORE,
            failure=failure,
        )

    def _require(self, name: str) -> None:
        if name != NAME:
            raise DeploymentNotFound(
                f"No deployment named '{name}' on {self.target.name}.",
                fix=f"The one behind VLLM_BASE_URL is called '{NAME}'.",
            )

    def _refuse(self) -> NoReturn:
        raise Unsupported(
            f"{self._base_url} is an endpoint of yours that this server only looks at and asks.",
            fix="Name a target of list_targets to make, change or remove a deployment.",
        )
