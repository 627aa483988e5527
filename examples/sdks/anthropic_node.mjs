// @anthropic-ai/sdk: a message, a streamed call of a tool and its result, counted tokens.
import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic();
const model = "fake";
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", input_schema }];
const asked = [{ role: "user", content: "What is the weather in Paris?" }];

const answer = await client.messages.create({ model, max_tokens: 100, messages: [{ role: "user", content: "Hi" }] });
assert.equal(answer.content[0].text, "Hello from Relevo.");

const message = await client.messages.stream({ model, max_tokens: 200, messages: asked, tools }).finalMessage();
const call = message.content.find((block) => block.type === "tool_use");
assert.deepEqual([message.stop_reason, call.input], ["tool_use", { city: "Paris" }]);
const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] };
const messages = [...asked, { role: "assistant", content: message.content }, result];
const told = await client.messages.create({ model, max_tokens: 100, messages, tools });
assert.match(told.content[0].text, /^It is sunny/);
const counted = await client.messages.countTokens({ model, messages, tools });
const { input_tokens, cache_read_input_tokens, cache_creation_input_tokens } = told.usage;
assert.equal(counted.input_tokens, input_tokens + cache_read_input_tokens + cache_creation_input_tokens);
