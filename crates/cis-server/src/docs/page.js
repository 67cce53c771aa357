// Shows the OpenAPI document of this node, and calls it. Everything is put into the page as text, never as markup.
"use strict";

const METHODS = ["get", "head", "post", "put", "patch", "delete"];
const DEPTH_MAX = 5;
let api;

/// An element with attributes and children; a string becomes text.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/// Text with `code` in backticks.
function prose(text) {
  return (text ?? "").split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

function resolve(schema) {
  if (!schema?.$ref) return schema ?? {};
  const found = schema.$ref.slice(2).split("/").reduce((at, key) => at?.[key], api);
  return { description: schema.description, ...found };
}

/// The properties of an object, also of one that is made of several.
function fields(schema) {
  schema = resolve(schema);
  const own = Object.entries(schema.properties ?? {}).map(([name, property]) => ({
    name, property, required: (schema.required ?? []).includes(name),
  }));
  const parts = [...(schema.allOf ?? []), ...(schema.anyOf ?? []).map((part) => ({ ...resolve(part), required: [] }))];
  const all = new Map(own.map((field) => [field.name, field]));
  for (const field of parts.flatMap(fields)) if (!all.has(field.name)) all.set(field.name, field);
  return [...all.values()].sort((one, other) => other.required - one.required);
}

/// What may be null, without the null.
function plain(schema) {
  const some = (schema.oneOf ?? []).filter((part) => part.type !== "null");
  return some.length === 1 ? resolve(some[0]) : resolve(schema);
}

function kind(schema) {
  schema = plain(resolve(schema));
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array" || schema.type?.includes?.("array")) return `${kind(schema.items)}[]`;
  if (schema.properties || schema.allOf) return "object";
  const types = [schema.type ?? "anything"].flat().filter((type) => type !== "null");
  const limits = [
    schema.maxLength !== undefined ? `at most ${schema.maxLength} characters` : undefined,
    schema.maximum !== undefined ? `at most ${schema.maximum}` : undefined,
    schema.format && !/^u?int/.test(schema.format) ? schema.format : undefined,
  ].filter(Boolean);
  return [types.join(" | "), ...limits].join(", ");
}

function inner(schema) {
  schema = plain(resolve(schema));
  return schema.items ? plain(resolve(schema.items)) : schema;
}

/// Rows for the fields of an object, and of the objects in it.
function rows(schema, depth = 0) {
  return fields(schema).flatMap(({ name, property, required }) => {
    const about = property.description ?? plain(property).description;
    const row = make("tr", {},
      make("td", { class: `deep${depth}` }, name, required ? make("span", { class: "s4", title: "required" }, " *") : ""),
      make("td", { class: "kind" }, kind(property)),
      make("td", {}, prose(about)));
    return [row, ...(depth < DEPTH_MAX ? rows(inner(property), depth + 1) : [])];
  });
}

function shape(schema) {
  const found = rows(inner(schema));
  return found.length ? make("table", {}, found) : make("p", { class: "soft" }, kind(schema));
}

function parameters(list) {
  return make("table", {}, list.map((parameter) => make("tr", {},
    make("td", {}, parameter.name, parameter.required ? make("span", { class: "s4", title: "required" }, " *") : ""),
    make("td", { class: "kind" }, `${parameter.in}, ${kind(parameter.schema)}`),
    make("td", {}, prose(parameter.description)))));
}

function answers(responses) {
  return Object.entries(responses).map(([status, response]) => {
    const [type, content] = Object.entries(response.content ?? {})[0] ?? [];
    return make("details", { class: "answer" },
      make("summary", {}, make("b", { class: `s${status[0]}` }, status), " ", prose(response.description)),
      make("p", { class: "soft" }, type ?? "no body"),
      type === "application/json" ? shape(content.schema) : "");
  });
}

function role(operation) {
  const [needs] = operation.security ?? [];
  if (!needs) return "open";
  const [roles] = Object.values(needs);
  return roles.length ? `role ${roles.join(", ")}` : "any token";
}

function example(body) {
  const schema = resolve(body?.content?.["application/json"]?.schema);
  const found = schema.example ?? schema.examples?.[0] ?? (schema.oneOf ? {} : undefined);
  return JSON.stringify(found ?? {}, null, 2);
}

/// What somebody sees of an answer. A stream is cut after its first events: it has no end.
async function readable(response) {
  const type = response.headers.get("content-type") ?? "";
  if (type.startsWith("text/event-stream")) {
    const reader = response.body.getReader();
    const cut = setTimeout(() => reader.cancel(), 3000);
    const { value } = await reader.read();
    clearTimeout(cut);
    reader.cancel();
    return value ? new TextDecoder().decode(value) : "(nothing happened for three seconds)";
  }
  const text = await response.text();
  if (!type.startsWith("application/json")) return text;
  return JSON.stringify(JSON.parse(text), null, 2);
}

function attempt(method, path, operation) {
  const list = operation.parameters ?? [];
  const inputs = new Map(list.map((parameter) => [parameter, make("input", { spellcheck: "false" })]));
  const body = operation.requestBody ? make("textarea", { spellcheck: "false" }) : undefined;
  if (body) body.value = example(operation.requestBody);
  const shown = make("pre", { hidden: true });
  const button = make("button", { type: "button" }, "Call");
  button.addEventListener("click", async () => {
    const token = document.getElementById("token").value.trim();
    const headers = new Headers(token ? { Authorization: `Bearer ${token}` } : {});
    const query = new URLSearchParams();
    let target = path;
    for (const [{ name, in: place }, { value }] of inputs) {
      if (place === "path") target = target.replace(`{${name}}`, encodeURIComponent(value));
      else if (value && place === "query") query.set(name, value);
      else if (value) headers.set(name, value);
    }
    if (method !== "get" && method !== "head") headers.set("Content-Type", "application/json");
    shown.hidden = false;
    shown.textContent = "…";
    try {
      const options = { method: method.toUpperCase(), headers, body: body?.value };
      const response = await fetch(query.size ? `${target}?${query}` : target, options);
      shown.textContent = `${response.status} ${response.statusText}\n\n${await readable(response)}`;
    } catch (problem) {
      shown.textContent = `No answer: ${problem.message}`;
    }
  });
  return make("div", { class: "try" },
    [...inputs].map(([parameter, input]) => make("label", {}, make("span", {}, parameter.name), input)),
    body ? make("label", {}, make("span", {}, "body"), body) : "", button, shown);
}

function call(method, path, operation) {
  const block = make("details", { class: "call", id: operation.operationId },
    make("summary", {},
      make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("span", { class: "path" }, path),
      make("span", { class: "soft" }, prose(operation.summary)),
      make("span", { class: "role" }, role(operation))));
  block.dataset.words = `${method} ${path} ${operation.summary} ${role(operation)}`.toLowerCase();
  // Most are never opened.
  block.addEventListener("toggle", () => {
    const json = operation.requestBody?.content?.["application/json"];
    block.append(make("div", {},
      operation.description ? make("p", {}, prose(operation.description)) : "",
      operation.parameters?.length ? [make("h3", {}, "Parameters"), parameters(operation.parameters)] : [],
      json ? [make("h3", {}, "Body"), shape(json.schema)] : [],
      make("h3", {}, "Answers"), answers(operation.responses),
      make("h3", {}, "Try it"), attempt(method, path, operation)));
  }, { once: true });
  return block;
}

function show() {
  document.getElementById("version").textContent = api.info.version;
  document.getElementById("about").replaceChildren(...prose(api.info.description));
  const groups = new Map((api.tags ?? []).map(({ name }) => [name, []]));
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((method) => item[method])) {
      const tag = item[method].tags?.[0] ?? "More";
      groups.set(tag, [...(groups.get(tag) ?? []), call(method, path, item[method])]);
    }
  }
  for (const [tag, calls] of groups) {
    document.getElementById("groups").append(make("a", { href: `#${tag}` }, tag));
    document.getElementById("calls").append(make("section", {}, make("h2", { id: tag }, tag), calls));
  }
}

function find(words) {
  for (const section of document.querySelectorAll("section")) {
    const calls = [...section.querySelectorAll(".call")];
    for (const block of calls) block.hidden = !block.dataset.words.includes(words);
    section.hidden = calls.every((block) => block.hidden);
  }
}

document.getElementById("find").addEventListener("input", ({ target }) => find(target.value.trim().toLowerCase()));
fetch("/api/v1/openapi.json")
  .then((response) => response.json())
  .then((told) => { api = told; show(); })
  .catch((problem) => { document.getElementById("about").textContent = `Cannot read the document: ${problem.message}`; });
