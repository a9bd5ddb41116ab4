"""Asks with the official Python SDK what it is told, one JSON object a line on standard input, and tells on standard
output what its program sees. clients.mjs says what can be asked."""

import json
import sys
import threading

import openai

HTTP = openai.DefaultHttpxClient()


def plain(value):
    return value.to_dict(mode="json") if hasattr(value, "to_dict") else value


def iterate(stream):
    events = []
    try:
        for event in stream:
            events.append(plain(event))
    except Exception as error:
        return {"events": events, "broken": f"{type(error).__name__}: {error}"}
    return {"events": events}


def ask(base, how, params=None, id=None, query=None, headers=None):
    api = openai.OpenAI(api_key="dummy", base_url=base + "/v1", http_client=HTTP, max_retries=0, timeout=60, default_headers=headers).responses
    match how:
        case "create":
            return {"response": plain(api.create(**params))}
        case "stream":
            with api.stream(**params) as stream:
                events = [event.type for event in stream]
                return {"types": events, "response": plain(stream.get_final_response())}
        case "events":
            with api.create(**params, stream=True) as stream:
                return iterate(stream)
        case "retrieve":
            return {"response": plain(api.retrieve(id))}
        case "resume":
            with api.retrieve(id, stream=True, **(query or {})) as stream:
                return iterate(stream)
        case "cancel":
            return {"response": plain(api.cancel(id))}
        case "delete":
            api.delete(id)
            return {}
        case "items":
            return {"items": [plain(item) for item in api.input_items.list(id, **(query or {}))]}


def answer(order, lock):
    number = order.pop("id")
    try:
        result = ask(**order["order"])
    except Exception as error:
        result = {"error": {"name": type(error).__name__, "status": getattr(error, "status_code", None), "code": getattr(error, "code", None), "param": getattr(error, "param", None), "message": str(error)}}
    line = json.dumps({"id": number, **result})
    with lock:
        print(line, flush=True)


def main():
    lock = threading.Lock()
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line), lock), daemon=True).start()


main()
