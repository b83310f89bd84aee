# Every way in. GNU make 3.81 or newer; `make` alone lists the targets.
#
# VARIABLE=value after `make` is an argument of the tool: MAX_MODEL_LEN=4096 is max_model_len.
# A variable of the caller's environment never is: NAME, TARGET and the like are set in many shells.

PY      := .venv/bin/python
STAMP   := .venv/.installed
TOOLS   := .venv/.tools
RAY     := .venv/.ray
# Settings given to make go on as environment variables; the rest of these steer make itself.
SETTING := $(if $(filter vllm ollama,$(value ENGINE)),,ENGINE) READ_ONLY REHEARSAL %_SCALE TOOLSETS MODEL_NAME BUCKET_NAME ACCELERATOR_TYPE HF_TOKEN \
           VLLM_TARGET VLLM_BASE_URL VLLM_API_KEY VLLM_EXECUTABLE VLLM_DEVOPS_STATE_DIR \
           GOOGLE_% AZURE_% REGISTRY_% ANALYST_% MCP_%
APART   := vllm or browser or sweep or gcloud or cluster
STEER   := DEMO_OPEN ROOM PART YES JSON CLIENT URL TOOL PYTHON SHELL MAKE%

given     := $(foreach v,$(.VARIABLES),$(if $(findstring command line,$(origin $(v))),$(v)))
arguments := $(filter-out $(SETTING) $(STEER),$(given))
on         = $(and $(filter $(1),$(given)),$(filter-out 0 no No NO false False FALSE off,$(value $(1))))

# Values travel through the environment as they were typed: neither make nor a shell reads them.
$(foreach v,$(arguments),$(eval export GIVEN_$(v) := $$(value $(v)))$(eval unexport $(v)))
$(foreach v,$(filter $(SETTING),$(given)),$(eval override $(v) := $$(value $(v)))$(eval export $(v)))
MAKEOVERRIDES :=

lower = $(shell echo $(1) | tr '[:upper:]' '[:lower:]')
words = $(foreach v,$(arguments),$(if $(value $(v)),"$(call lower,$(v))=$$GIVEN_$(v)"))
tool  = @$(PY) server.py call $(1) --make $@ $(words) $(if $(call on,JSON),--json) $(if $(call on,YES),--yes)

.PHONY: help demo test test-engine lint run install vllm mcp-config clean deploy status endpoint \
        metrics query logs destroy targets list health stats stop start call broken prices plan advise measure \
        benchmark benchmarks compare campaign bench-client ray cluster-demo test-cluster bench-cluster test-lives test-browser test-sweep test-gcloud \
        setup quotas zones rehearse rehearse-clean first-contact diagnose alerts bench-logs \
        http doctor conformance clients find leftovers

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  make deploy TARGET=local MODEL=google/gemma-4-E4B-it MAX_MODEL_LEN=4096'
	@echo '  make query PROMPT="What is Gemma?"     JSON=1 prints JSON, YES=1 agrees beforehand'

demo: $(STAMP) ## Deploy, look, ask, measure and destroy, on this machine (DEMO_OPEN=1: show the report)
	@$(PY) demo.py $(if $(filter-out 0 no No NO false False FALSE off,$(value DEMO_OPEN)),--open)

cluster-demo: $(RAY) ## Sweep a simulated engine from three Ray nodes here, one of which dies (installs Ray)
	@$(PY) cluster_demo.py

rehearse: $(STAMP) ## Tell a deployment's whole life on a simulated cloud (TARGET, WITH=ollama)
	@$(PY) rehearse.py $(if $(call on,TARGET),'$(subst ','\'',$(value TARGET))',cloud-run-l4) $(filter ollama,$(value WITH))
rehearse-clean: $(STAMP) ## Forget the simulated clouds and everything in them
	@$(PY) rehearse.py clean

first-contact: $(STAMP) ## Try a real cloud: look, then, once you agree, deploy, try, remove, report (TARGET)
	@$(PY) first_contact.py '$(subst ','\'',$(value TARGET))' $(if $(call on,YES),yes)

# What is compiled once is not compiled again by each worker and each process that a test starts.
test test-lives test-engine test-browser: export PYTHONDONTWRITEBYTECODE :=

test: $(TOOLS) ## Run the tests that need no real vLLM and no minutes (ROOM=tools: those of tests/tools)
	$(PY) -m pytest -q -n 3 --dist worksteal -m "not ($(APART) or life)" $(if $(call on,ROOM),'tests/$(subst ','\'',$(value ROOM))')

test-lives: $(TOOLS) ## Tell whole lives of deployments, and let processes die in every phase (minutes)
	$(PY) -m pytest -q -n 3 --dist worksteal -m "life and not ($(APART))"

# The first deployment is planned for the memory that is free: nothing else boots meanwhile.
test-engine: vllm $(TOOLS) ## Run the tests on a real vLLM
	$(PY) -m pytest -q -m vllm tests/real/test_defaults.py
	$(PY) -m pytest -q -n 2 --dist loadgroup -m vllm --deselect tests/real/test_defaults.py

test-gcloud: $(TOOLS) ## Let the real gcloud read every command that is printed; needs no login
	$(PY) -m pytest -q -m gcloud

test-browser: $(TOOLS) ## Run the tests of the report page, in a real Chromium
	$(PY) -m pytest -q -m browser

test-cluster: $(TOOLS) $(RAY) ## Put load from a Ray cluster of three nodes on this machine; nodes die (minutes)
	$(PY) -m pytest -q -m cluster

test-sweep: $(TOOLS) ## Sweep a simulated A100 in 144 cells, killed twice on its way (minutes)
	$(PY) -m pytest -q -m sweep

conformance: $(TOOLS) ## Run the official MCP conformance suite and the strict inspector (downloads them)
	@$(PY) -m tests.conformance
clients: $(TOOLS) ## Connect real MCP clients, without keys, and see them list and call (downloads them; minutes)
	@$(PY) -m tests.clients

bench-client: $(TOOLS) ## Measure the load generator beside others (downloads them; 8 minutes)
	@$(PY) -m tests.measure_client

bench-cluster: $(TOOLS) $(RAY) ## Measure what Ray costs the load, and what ten killed nodes leave (minutes)
	@$(PY) -m tests.measure_cluster

find: $(STAMP) ## Say why what wrote a log ended, without a deployment (LOG="FILE...", WRITER)
	@$(PY) -m logs find $(if $(WRITER),--writer $(WRITER)) -- $(LOG)

bench-logs: $(TOOLS) ## Measure the reduction of a million lines beside others (downloads drain3; minutes)
	@$(PY) -m tests.measure_logs

PARTS := budgets planner truth results merge house diagnosis boots compile_cache first_line
measure: $(TOOLS) measure-how-long $(addprefix measure-,$(or $(PART),$(PARTS))) ## Measure budgets, plans, answers, truth (PART: one; all: half an hour)
measure-how-long: ; @echo 'all parts take 20 to 45 minutes on two cores, most of it without a word; PART=diagnosis runs one of: $(PARTS)'
measure-budgets: ; @$(PY) -m tests.measure
measure-house: ; @$(PY) -m tests.measure_house --frames
measure-first_line: ; @$(PY) -m pytest -qs tests/questions/test_first_line.py
measure-%: ; @$(PY) -m tests.measure_$*

lint: $(TOOLS) ## Check style, types, layers and shell scripts
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) .venv/bin/lint-imports
	.venv/bin/shellcheck init.sh set_env.sh .ci/run

run: $(STAMP) ## Speak MCP on stdin and stdout
	@$(PY) server.py
http: $(STAMP) ## Speak MCP over HTTP, on this machine only
	@$(PY) server.py --http

install: $(STAMP) ## Make .venv, with what the server needs (make lint or test adds its tools)
	@echo .venv is ready.

ray: $(RAY) ## Install Ray in .venv, for load from a cluster (benchmark CLUSTER=…)

vllm: $(STAMP) ## Install a real vLLM for CPUs in .vllm
	@$(PY) -m backends.local.install --if-missing

prices: $(STAMP) ## Ask the clouds for their prices, show what changed
	@$(PY) -m planner.refresh
plan: $(STAMP) ## Say whether a model fits a target (TARGET MODEL MAX_MODEL_LEN …)
	$(call tool,plan_deployment)
advise: $(STAMP) ## Recommend where to run a model (MODEL USERS MAX_MODEL_LEN USD_PER_HOUR …)
	$(call tool,recommend_deployment)

mcp-config: $(STAMP) ## Print the configuration of MCP clients (CLIENT=codex: of one; URL: of a server that runs)
	@$(PY) server.py mcp-config $(if $(call on,CLIENT),'$(subst ','\'',$(value CLIENT))') \
	  $(if $(call on,URL),--url '$(subst ','\'',$(value URL))') \
	  $(foreach v,$(filter $(SETTING),$(given)),--set $(v)) $(foreach v,$(arguments),--set "$(v)=$$GIVEN_$(v)")
doctor: $(STAMP) ## Check Python, packages, logins, disk, engine and clients, and say what to do
	@$(PY) server.py doctor $(if $(call on,JSON),--json)

deploy: $(STAMP) ## Deploy a model and wait until it answers (TARGET MODEL NAME MAX_MODEL_LEN …)
	$(call tool,deploy_vllm) --wait
setup: $(STAMP) ## Make what a target needs once: APIs, accounts, roles, storage (TARGET)
	$(call tool,setup_target)
quotas: $(STAMP) ## Show how many accelerators you may use (TARGET)
	$(call tool,check_gpu_quotas)
zones: $(STAMP) ## Show which zones may give a TPU (TARGET)
	$(call tool,get_zones_with_available_quota)
status: $(STAMP) ## Say what a deployment does now (TARGET NAME)
	$(call tool,status_vllm)
endpoint: $(STAMP) ## Say where the model answers, and how to call it
	$(call tool,get_endpoint)
metrics: $(STAMP) ## Show the engine's load, latencies and cache
	$(call tool,get_metrics)
health: $(STAMP) ## Check that the model really answers
	$(call tool,verify_model_health)
diagnose: $(STAMP) ## Find what is wrong: layer, evidence, cause, fix
	$(call tool,diagnose)
alerts: $(STAMP) ## Write Prometheus rules for the served metrics
	@$(PY) server.py call get_alert_rules $(words) --field=rules
query: $(STAMP) ## Ask the model (PROMPT="…")
	$(call tool,query_gemma4)
stats: $(STAMP) ## Ask it and time the answer (PROMPT="…")
	$(call tool,query_gemma4_with_stats)
benchmark: $(STAMP) ## Measure a deployment and wait for the report (PROFILE CONTEXTS CONCURRENCIES …)
	$(call tool,run_benchmark) --wait
campaign: $(STAMP) ## Measure models x targets x flags, a run each (FILE=places.toml, or the folder to go on with; CLUSTER)
	@$(PY) -m benchmark campaign '$(subst ','\'',$(value FILE))' $(foreach v,CLUSTER NODES MAX_COST_USD MAX_MINUTES,$(if $(call on,$(v)),--$(subst _,-,$(call lower,$(v))) '$(subst ','\'',$(value $(v)))'))
benchmarks: $(STAMP) ## List the benchmark runs that are kept
	$(call tool,list_benchmarks)
compare: $(STAMP) ## Compare benchmark runs (BENCHMARKS=ID,ID…: the first is the reference)
	$(call tool,compare_benchmarks)
logs: $(STAMP) ## Show the engine's last lines (CONTAINS, MINUTES, REDUCE=true: their kinds)
	$(call tool,get_logs)
stop: $(STAMP) ## Stop a deployment, so that it costs no more
	$(call tool,stop_vllm)
start: $(STAMP) ## Start a stopped one and wait until it answers, or sleeps until it is asked
	$(call tool,start_vllm) --wait
destroy: $(STAMP) ## Remove a deployment (YES=1: without asking)
	$(call tool,destroy_vllm) --wait
targets: $(STAMP) ## List where models can run
	$(call tool,list_targets)
list: $(STAMP) ## List every deployment
	$(call tool,list_deployments)
leftovers: $(STAMP) ## Find what no deployment needs any more (make destroy LEFTOVER=ID TARGET=… removes it)
	$(call tool,get_system_status) leftovers=true
call: $(STAMP) ## Call any other tool (TOOL=get_help)
	$(call tool,$(if $(call on,TOOL),'$(subst ','\'',$(value TOOL))',get_help))

clean: ## Remove .venv and caches; .env, .vllm and deployments stay
	rm -rf .venv .conformance .clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Interrupted work leaves `.unfinished`: then, or when its Python is gone, .venv is made anew. One
# that somebody made by hand is kept and filled. An activated .venv is not made by itself: `base`.
pythons := $(if $(call on,PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11)
usable  := import sys, pip; sys.exit(sys.version_info < (3, 11))
base    := import sys, venv, ensurepip; sys.version_info < (3, 11) and sys.exit(1); \
           print(sys._base_executable)

$(STAMP): requirements.txt $(if $(shell test -x $(PY) && echo yes),,broken)
	@exec >&2; \
	if [ -e .venv/.unfinished ] || ! $(PY) -c '$(usable)' </dev/null 2>/dev/null; then \
	    for p in $(pythons); do base=$$("$$p" -c '$(base)' </dev/null 2>/dev/null) && break; done \
	        || { echo 'Python 3.11 or newer with venv is missing (sudo apt install python3-venv, or' \
	            'brew install python); one that is not on the PATH: make install PYTHON=/its/path'; \
	        exit 1; }; \
	    echo "Making .venv with $$("$$base" --version); it takes a minute."; \
	    rm -rf .venv && mkdir .venv && touch .venv/.unfinished && "$$base" -m venv .venv || exit 1; \
	fi; \
	rm -f $@ && touch .venv/.unfinished \
	    && $(PY) -m pip install -qq --disable-pip-version-check -r requirements.txt \
	    && rm .venv/.unfinished && touch $@

# What tests and checks need beside: a user's first command neither waits for it nor fails by it.
$(TOOLS): $(STAMP) requirements-dev.txt
	@exec >&2; $(PY) -m pip install -qq --disable-pip-version-check -r requirements-dev.txt && touch $@

$(RAY): $(STAMP) requirements-ray.txt
	@exec >&2; $(PY) -m pip install -qq --disable-pip-version-check -r requirements-ray.txt && touch $@
