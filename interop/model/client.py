"""Calls of models by the official clients, as a person would write them. Each line of stdin is a call, each of stdout what came of it."""

import json
import sys

import anthropic
import openai

MESSAGES = [{"role": "user", "content": "hi"}]


def call(base, session, api, way, model):
    o = openai.OpenAI(api_key="k", base_url=f"{base}/sessions/{session}/v1", max_retries=0)
    a = anthropic.Anthropic(api_key="k", base_url=f"{base}/sessions/{session}", max_retries=0)
    match api, way:
        case "chat", "whole":
            return o.chat.completions.create(model=model, messages=MESSAGES).choices[0].message.content
        case "chat", "raw":
            return str(len(list(o.chat.completions.create(model=model, messages=MESSAGES, stream=True))))
        case "chat", "helper":
            with o.chat.completions.stream(model=model, messages=MESSAGES) as stream:
                return stream.get_final_completion().choices[0].message.content
        case "messages", "whole":
            return a.messages.create(model=model, messages=MESSAGES, max_tokens=9).content[0].text
        case "messages", "raw":
            return str(len(list(a.messages.create(model=model, messages=MESSAGES, max_tokens=9, stream=True))))
        case "messages", "helper":
            with a.messages.stream(model=model, messages=MESSAGES, max_tokens=9) as stream:
                return stream.get_final_message().content[0].text
        case "responses", "whole":
            return o.responses.create(model=model, input="hi").output_text
        case "responses", "raw":
            return str(len(list(o.responses.create(model=model, input="hi", stream=True))))
        case "responses", "helper":
            with o.responses.stream(model=model, input="hi") as stream:
                return stream.get_final_response().output_text
    raise ValueError(f"{api} {way}")


for line in sys.stdin:
    try:
        result = {"said": call(**json.loads(line))}
    except Exception as error:  # whatever a client raises is what is asked for
        result = {"raised": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(result), flush=True)
