// One call of a model by the official clients, as a person would write it.

import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const messages = [{ role: 'user', content: 'hi' }];

async function drain(stream) {
  let events = 0;
  for await (const event of stream) {
    if (event) events++;
  }
  return String(events);
}

/** Calls by api ("chat", "messages", "responses") and way ("whole", "raw", "helper"); resolves to what was said. */
export async function call(base, session, api, way, model, options = {}) {
  const openai = new OpenAI({ apiKey: 'k', baseURL: `${base}/sessions/${session}/v1`, maxRetries: 0, ...options });
  const anthropic = new Anthropic({ apiKey: 'k', baseURL: `${base}/sessions/${session}`, maxRetries: 0, ...options });
  switch (`${api} ${way}`) {
    case 'chat whole':
      return (await openai.chat.completions.create({ model, messages })).choices[0].message.content;
    case 'chat raw':
      return drain(await openai.chat.completions.create({ model, messages, stream: true }));
    case 'chat helper':
      return (await openai.chat.completions.stream({ model, messages }).finalChatCompletion()).choices[0].message.content;
    case 'messages whole':
      return (await anthropic.messages.create({ model, messages, max_tokens: 9 })).content[0].text;
    case 'messages raw':
      return drain(await anthropic.messages.create({ model, messages, max_tokens: 9, stream: true }));
    case 'messages helper':
      return (await anthropic.messages.stream({ model, messages, max_tokens: 9 }).finalMessage()).content[0].text;
    case 'responses whole':
      return (await openai.responses.create({ model, input: 'hi' })).output_text;
    case 'responses raw':
      return drain(await openai.responses.create({ model, input: 'hi', stream: true }));
    case 'responses helper':
      return (await openai.responses.stream({ model, input: 'hi' }).finalResponse()).output_text;
  }
  throw new TypeError(`${api} ${way}`);
}
