"""What schemathesis must not do to the node it calls, nor the node to the machine; and what it cannot guess."""

import itertools
import json
import os
import re
import urllib.request

import schemathesis

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DURATION = re.compile(r"(\d+(ms|s|m|h|d))+")

# Where this process puts what it needs: other callers keep away from it, unless they take everything.
SCOPE = f"user-{os.getpid()}"
NUMBERS = itertools.count()


@schemathesis.hook
def before_call(context, case, kwargs):
    # What is published may be confirmed next, and then it runs: nobody knows what a made-up command does.
    tame(case.body)
    if isinstance(case.path_parameters, dict):
        lead(case.path_parameters, case.body)
    # Waiting in vain shows nothing that waiting shortly does not.
    query = case.query
    if isinstance(query, dict) and isinstance(query.get("wait"), str) and DURATION.fullmatch(query["wait"]):
        query["wait"] = "10ms"
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_secs"), int):
        case.body["wait_secs"] = min(case.body["wait_secs"], 0)
    # A run that waits for somebody has a log without an end.
    if isinstance(query, dict) and "follow" in query and case.path_parameters["run"] != os.environ["CIS_RUN_ID"]:
        query["follow"] = "false"


def tame(part):
    if isinstance(part, dict):
        if isinstance(part.get("command"), str):
            part["command"] = "true"
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            tame(inner)


def lead(ids, body):
    """Away from what would end the node's usefulness, and every other time to something that there is."""
    # A token that takes itself back gets no other answers any more.
    if ids.get("id") == os.environ["CIS_TOKEN_ID"]:
        ids["id"] = "tok_0"
    # Nothing would start any more, of anybody's.
    if ids.get("scope") == "global":
        ids["scope"] = "project-quiet"
    if UUID.fullmatch(str(ids.get("run"))) and int(ids["run"][0], 16) % 2:
        if "task" in ids:
            ids["run"], ids["task"] = start({"id": "ask", "type": "approval"}), "ask"
        elif int(ids["run"][1], 16) % 2:
            ids["run"] = start({"id": "wait", "type": "external"})
        else:
            ids["run"] = os.environ["CIS_RUN_ID"]
            if isinstance(body, dict) and isinstance(body.get("task"), str):
                body["task"] = "say"
    if isinstance(ids.get("execution"), int) and ids["execution"] % 2:
        task = claim()
        ids["execution"] = task["execution_id"]
        if isinstance(body, dict) and isinstance(body.get("fence"), int):
            body["fence"] = task["fence"]


def claim():
    """A task that this caller holds."""
    held = []
    # Another caller may have been faster.
    while not held:
        start({"id": "wait", "type": "external"})
        held = call("/api/v1/tasks/claim", {"scopes": [SCOPE]})["tasks"]
    return held[0]


def start(task):
    """A run of this task, which waits for somebody."""
    name = f"known-{os.getpid()}-{next(NUMBERS)}"
    call("/api/v1/dag/publish", {"dag_id": name, "scope": SCOPE, "tasks": [task]})
    return call(f"/api/v1/dag/{name}/confirm", {})["run_id"]


def call(path, body):
    headers = {"Authorization": f"Bearer {os.environ['CIS_TOKEN']}"}
    request = urllib.request.Request(os.environ["CIS_URL"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)
