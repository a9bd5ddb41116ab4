"""Asks with the official Python SDKs what it is told, one JSON object a line on standard input, and tells on standard
output what its program sees. clients.mjs says what can be asked."""

import json
import sys
import threading

import anthropic
import openai

QUESTION = [{"role": "user", "content": "Say hello."}]

# Making one takes most of the time of a short request, so all clients of an SDK share one.
OPENAI, ANTHROPIC = openai.DefaultHttpxClient(), anthropic.DefaultHttpxClient()


class Chat:
    request = {"messages": QUESTION}

    def __init__(self, base, **options):
        self.api = openai.OpenAI(base_url=base + "/v1", http_client=OPENAI, **options).chat.completions

    def helper(self, order):
        with self.api.stream(**order) as stream:
            return stream.get_final_completion()

    def whole(self, answer):
        return {"text": answer.choices[0].message.content, "finish": answer.choices[0].finish_reason}

    def text(self, chunk):
        return chunk.choices[0].delta.content if chunk.choices else None


class Messages:
    request = {"messages": QUESTION, "max_tokens": 50}

    def __init__(self, base, **options):
        self.api = anthropic.Anthropic(base_url=base, http_client=ANTHROPIC, **options).messages

    def helper(self, order):
        with self.api.stream(**order) as stream:
            return stream.get_final_message()

    def whole(self, answer):
        return {"text": "".join(block.text for block in answer.content), "finish": answer.stop_reason}

    def text(self, event):
        return event.delta.text if event.type == "content_block_delta" else None


class Responses:
    request = {"input": "Say hello."}

    def __init__(self, base, **options):
        self.api = openai.OpenAI(base_url=base + "/v1", http_client=OPENAI, **options).responses

    def helper(self, order):
        with self.api.stream(**order) as stream:
            return stream.get_final_response()

    def whole(self, answer):
        return {"text": answer.output[0].content[0].text, "finish": answer.status}

    def text(self, event):
        return event.delta if event.type == "response.output_text.delta" else None


WAYS = {"chat": Chat, "messages": Messages, "responses": Responses}


def ask(api, how, base, model, retries=0, timeout=60, headers=None):
    way = WAYS[api](base, api_key="dummy", max_retries=retries, timeout=timeout, default_headers=headers)
    order = {"model": model, **way.request}
    try:
        if how == "create":
            return way.whole(way.api.create(**order))
        if how == "helper":
            return way.whole(way.helper(order))
        seen = {"text": "", "events": 0}
        with way.api.create(**order, stream=True) as stream:
            for event in stream:
                seen["events"] += 1
                text = way.text(event)
                seen["text"] += text or ""
                if text and how == "leave":
                    break  # which closes the connection
        return seen
    except Exception as error:
        return {"error": {"name": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}}


def answer(order, lock):
    line = json.dumps({"id": order.pop("id"), **ask(**order)})
    with lock:
        print(line, flush=True)


def main():
    lock = threading.Lock()
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line), lock), daemon=True).start()


main()
