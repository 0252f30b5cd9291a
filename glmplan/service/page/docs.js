// The page of the HTTP API: every route of openapi.json, its fields, an example and its answer. Nothing is loaded from elsewhere.

import { ask, at, el, kept } from "./dom.js";

document.documentElement.dataset.theme = kept("localStorage", "theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
let schemas = {};
/** A text whose words in backticks are code. */
const coded = (text) => (text || "").split("`").map((part, place) => (place % 2 ? el("code", { text: part }) : part));

const named = (schema) => schema.$ref?.split("/").at(-1);
const resolved = (schema) => (schema.$ref ? schemas[named(schema)] : schema);

/** The type of a schema in words; names of records are links. */
function type(schema) {
  const name = named(schema);
  if (name) return [el("a", { href: `#schema-${name}`, text: name })];
  const several = schema.anyOf || schema.oneOf;
  if (several) return several.flatMap((one, place) => [...(place ? [" or "] : []), ...type(one)]);
  if (schema.enum) return [schema.enum.map((one) => JSON.stringify(one)).join(", ")];
  if ("const" in schema) return [JSON.stringify(schema.const)];
  if (schema.type === "array") return ["list of ", ...type(schema.items || {})];
  if (typeof schema.additionalProperties === "object") return ["object of ", ...type(schema.additionalProperties)];
  return [schema.type || "any value"];
}

function fields(schema) {
  const { properties = {}, required = [], additionalProperties: more } = schema;
  const row = (name, one, needed) => el("tr", {}, el("th", { scope: "row" }, el("code", { text: name }), needed ? " *" : ""), el("td", {}, type(one)), el("td", {}, coded(one.description)));
  const rows = Object.entries(properties).map(([name, one]) => row(name, one, required.includes(name)));
  if (more && typeof more === "object") rows.push(row("…", more, false));
  const head = ["field", "type", "meaning"].map((text) => el("th", { scope: "col", text }));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Fields, table" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
}

/** The command that asks the example. */
function curl(method, path, example) {
  const data = example ? ` \\\n  -H 'content-type: application/json' -d '${JSON.stringify(example)}'` : "";
  return `curl -s ${method === "get" ? "" : `-X ${method.toUpperCase()} `}${location.origin}${path}${data}`;
}

function route(path, method, one) {
  const body = one.requestBody?.content["application/json"];
  const answer = Object.entries(one.responses).find(([status]) => status.startsWith("2"))?.[1];
  const told = answer?.content?.["application/json"]?.schema;
  const parts = [el("p", {}, coded(one.description || one.summary))];
  const given = (one.parameters || []).map((each) => [each.name, { ...each.schema, description: each.description || each.schema.description }]);
  if (body) parts.push(el("h3", { text: "Question" }), fields(resolved(body.schema)));
  else if (given.length) parts.push(el("h3", { text: "Parameters" }), fields({ properties: Object.fromEntries(given), required: one.parameters.filter((each) => each.required).map((each) => each.name) }));
  if (told) parts.push(el("h3", { text: "Answer" }), el("p", {}, type(told)));
  const command = curl(method, path, body?.example);
  parts.push(el("pre", { tabindex: "0", "aria-label": `Command for ${path}` }, el("code", { text: command })));
  if (body?.example) {
    const shown = el("pre", { tabindex: "0", hidden: true, "aria-label": `Answer of ${path}` });
    const tried = async () => {
      const found = await ask(path.slice(1), body.example).catch((error) => error.error || { message: error.message });
      shown.hidden = false;
      shown.replaceChildren(el("code", { text: JSON.stringify(found, null, 2) }));
    };
    parts.push(el("button", { type: "button", text: "Ask this", "aria-label": `Ask the example of ${path}`, click: tried }), shown);
  }
  return el("details", {}, el("summary", {}, el("code", { text: `${method.toUpperCase()} ${path}` }), " ", coded(one.description)), parts);
}

function draw(document_) {
  schemas = document_.components.schemas;
  const routes = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => route(path, method, one)));
  const records = Object.entries(schemas).map(([name, one]) => el("details", { id: `schema-${name}` }, el("summary", {}, el("code", { text: name }), " ", coded(one.description)), one.anyOf ? el("p", {}, type(one)) : fields(one)));
  at("routes").replaceChildren(el("p", {}, coded(document_.info.description)), el("p", {}, "The document for client generators: ", el("a", { href: "openapi.json", text: "openapi.json" }), ". * marks required fields."), el("h2", { text: "Routes" }), ...routes, el("h2", { text: "Records" }), ...records);
  opened();
}

/** Open the record that the address names. */
function opened() {
  const found = location.hash.startsWith("#schema-") && at(location.hash.slice(1));
  if (found) found.open = true;
  found?.scrollIntoView?.();
}

/** Ask for the token of the service. */
function token() {
  const field = el("input", { type: "password", name: "token", autocomplete: "off" });
  const given = (event) => {
    event.preventDefault();
    kept("sessionStorage", "token", field.value.trim());
    location.reload();
  };
  at("routes").replaceChildren(el("form", { submit: given }, el("label", {}, "Token of this service ", field), " ", el("button", { text: "Show" })));
}

addEventListener("hashchange", opened);
try {
  draw(await ask("openapi.json"));
} catch (error) {
  if (error.status === 401) token();
  else at("routes").replaceChildren(el("p", { text: error.message }));
}
at("routes").setAttribute("aria-busy", "false");
