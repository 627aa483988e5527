// openai for JavaScript: chat, a streamed call of a tool and its result, a parsed answer, the Responses API.
import assert from "node:assert";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI();
const model = "fake";
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const asked = [{ role: "user", content: "What is the weather in Paris?" }];
const Person = z.object({ name: z.string(), age: z.number().int() });

const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Hi" }] });
assert.equal(answer.choices[0].message.content, "Hello from Relevo.");

const message = await client.chat.completions.stream({ model, messages: asked, tools }).finalMessage();
const call = message.tool_calls[0];
assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
const told = await client.chat.completions.create({ model, messages: [...asked, message, result], tools });
assert.match(told.choices[0].message.content, /^It is sunny/);

const who = [{ role: "user", content: "Who wrote the first program?" }];
const response_format = zodResponseFormat(Person, "person_in_history");
const parsed = await client.chat.completions.parse({ model, messages: who, response_format });
assert.deepEqual(parsed.choices[0].message.parsed, { name: "Ada", age: 36 });

const flat = [{ type: "function", name: "get_weather", parameters, strict: false }];
const first = await client.responses.stream({ model, input: asked, tools: flat }).finalResponse();
const made = first.output.find((item) => item.type === "function_call");
const output = [{ type: "function_call_output", call_id: made.call_id, output: "sunny" }];
const second = await client.responses.create({ model, previous_response_id: first.id, input: output, tools: flat });
assert.match(second.output_text, /^It is sunny/);
const format = zodTextFormat(Person, "person_in_history");
const person = await client.responses.parse({ model, input: who, text: { format } });
assert.deepEqual(person.output_parsed, { name: "Ada", age: 36 });
