"""What the Hub says of a model: public, gated, or not there."""

from typing import NamedTuple

from pydantic import SecretStr


class Verdict(NamedTuple):
    """Whether it may be fetched; None cannot be told."""

    passed: bool | None
    detail: str
    fix: str = ""


def ask(model: str, token: SecretStr | None, endpoint: str | None = None) -> Verdict:
    """Ask first as anybody, then with the token; blocks as long as the Hub does.

    `endpoint` is another Hub than the public one.
    """
    from huggingface_hub import HfApi, errors

    unreachable: type[Exception] = vars(errors)["HTTPError"]  # of its own HTTP library
    api = HfApi(endpoint)
    said: bool | str = token.get_secret_value() if token else False
    try:
        try:
            api.auth_check(model, token=False)
        except errors.RepositoryNotFoundError:  # gated ones among them
            if not token:
                raise
            api.auth_check(model, token=said)
            return Verdict(passed=True, detail="It is gated or private, and HF_TOKEN may read it.")
    except errors.GatedRepoError:  # is a RepositoryNotFoundError, so it stands first
        return _gated(model, known=token is not None)
    except errors.RepositoryNotFoundError:
        return _missing(model, known=token is not None)
    except (unreachable, OSError, ValueError) as exc:
        why = (str(exc).splitlines() or [""])[0]
        return Verdict(passed=None, detail=f"The Hub cannot be asked: {type(exc).__name__} {why}")
    return Verdict(passed=True, detail="It is there for everybody.")


def _gated(model: str, *, known: bool) -> Verdict:
    page = f"https://huggingface.co/{model}"
    if known:
        return Verdict(
            passed=False,
            detail="It is gated, and the owner of HF_TOKEN has not been let in.",
            fix=f"Accept its licence at {page} as the owner of that token; with a fine-grained"
            " token, allow it to read gated repositories.",
        )
    return Verdict(
        passed=False,
        detail="It is gated, and no HF_TOKEN is set.",
        fix=f"Accept its licence at {page}, then call save_hf_token with a token of yours.",
    )


def _missing(model: str, *, known: bool) -> Verdict:
    owner = "your HF_TOKEN" if known else "somebody without a token"
    return Verdict(
        passed=False,
        detail=f"The Hub has no model {model}, or does not show it to {owner}.",
        fix="Correct its name (OWNER/MODEL); for a private one call save_hf_token.",
    )
