// The AI SDK: text, tools in a loop, generateObject; by its default provider (Responses), chat, an OpenAI-compatible
// provider and Anthropic's.
import assert from "node:assert";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.env.OPENAI_BASE_URL;
const openai = createOpenAI({ baseURL, apiKey: "x" });
const compatible = createOpenAICompatible({ name: "relevo", baseURL, supportsStructuredOutputs: true });
const anthropic = createAnthropic({ baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`, apiKey: "x" });
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const schema = z.object({ name: z.string(), age: z.number().int() });

const models = { responses: openai("fake"), chat: openai.chat("fake"), compatible: compatible("fake"), anthropic: anthropic("fake") };
for (const [name, model] of Object.entries(models)) {
  const said = await generateText({ model, prompt: "Hi" });
  assert.equal(said.text, "Hello from Relevo.", name);
  const request = { model, prompt: "What is the weather in Paris?", tools: { get_weather: weather }, stopWhen: stepCountIs(3) };
  const acted = await generateText(request);
  assert.equal(acted.steps.length, 2, name);
  assert.match(acted.text, /^It is sunny/, name);
  const streamed = streamText(request);
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.match(text, /^It is sunny/, name);
  if (name === "anthropic") continue; // this provider knows from a model's name whether it holds answers to a schema
  const { object } = await generateObject({ model, schema, prompt: "Who wrote the first program?" });
  assert.deepEqual(object, { name: "Ada", age: 36 }, name);
}
