"""An agent without a model behind it: it talks, asks, forks and goes back in time, and shows what lies in MongoDB.

Runs on the server of MONGODB_URI, else on a local one that it starts. Only its own thread is written, and deleted.
"""

from __future__ import annotations

import argparse
import operator
import os
import uuid
from contextlib import AbstractContextManager
from datetime import datetime
from pprint import pp
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt

from langgraph_mongo_saver import MongoDBSaver

Graph = CompiledStateGraph[Any, Any, Any, Any]


class Review(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    report: str


class State(Review, total=False):
    topics: list[str]
    findings: Annotated[list[str], operator.add]


def say(text: str) -> dict[str, Any]:
    return {"messages": [AIMessage(text)]}


def model(state: State) -> dict[str, Any]:
    """The script that plays the model."""
    asked = str(state["messages"][-1].content)
    if asked.startswith("Report on "):
        topics = asked.removeprefix("Report on ").rstrip(".").split(" and ")
        return {**say(f"I look up {len(topics)} topics."), "topics": topics}
    return {**say(f"You said {asked!r}. The report has {len(state['report']):,} characters."), "topics": []}


def next_tasks(state: State) -> list[Send] | str:
    """One task a topic, all in parallel."""
    return [Send("look_up", {"topics": [topic]}) for topic in state["topics"]] or END


def look_up(state: State) -> dict[str, Any]:
    return {"findings": [f"All about {topic}. " for topic in state["topics"]]}


def write_report(state: State) -> dict[str, Any]:
    return {"report": "".join(state["findings"]) * 10_000}


def ask_the_user(state: Review) -> dict[str, Any]:
    answer = interrupt(f"A report of {len(state['report']):,} characters. Publish it?")
    return say("Published." if answer == "yes" else "Thrown away.")


def build(saver: MongoDBSaver) -> Graph:
    review = StateGraph(Review)
    review.add_node(ask_the_user)
    review.add_edge(START, "ask_the_user")

    agent = StateGraph(State)
    agent.add_node(model)
    agent.add_node(look_up)
    agent.add_node(write_report)
    agent.add_node("review", review.compile())
    agent.add_edge(START, "model")
    agent.add_conditional_edges("model", next_tasks, ["look_up", END])
    agent.add_edge("look_up", "write_report")
    agent.add_edge("write_report", "review")
    return agent.compile(checkpointer=saver)


def step_of(snapshot: StateSnapshot) -> int:
    return int((snapshot.metadata or {})["step"])


def last_words(snapshot: StateSnapshot) -> str:
    message = snapshot.values["messages"][-1]
    return f"{message.type}: {message.content}"


def talk(graph: Graph, config: RunnableConfig, text: str) -> None:
    print(f"human: {text}")
    graph.invoke({"messages": [HumanMessage(text)]}, config)
    state = graph.get_state(config)
    for pause in state.interrupts:
        print(f"   the graph waits: {pause.value}")
    if not state.next:
        print(last_words(state))


def answer(graph: Graph, config: RunnableConfig, text: str) -> None:
    print(f"   answered: {text}")
    graph.invoke(Command(resume=text), config)
    print(last_words(graph.get_state(config)))


def history(graph: Graph, config: RunnableConfig) -> list[StateSnapshot]:
    snapshots = list(graph.get_state_history(config))
    for snapshot in snapshots:
        count = len(snapshot.values.get("messages", []))
        print(f"step {step_of(snapshot):>2}  {count} messages  next: {', '.join(snapshot.next) or 'end'}")
    return snapshots


def go_back(graph: Graph, config: RunnableConfig, past: StateSnapshot) -> None:
    before = len(list(graph.get_state_history(config)))
    graph.invoke(None, past.config)
    after = len(list(graph.get_state_history(config)))
    print(f"from step {step_of(past)} on, once more: {last_words(graph.get_state(config))}")
    print(f"checkpoints of the conversation: {before} before, {after} after")


def fork(graph: Graph, config: RunnableConfig, past: StateSnapshot) -> None:
    head = graph.get_state(config)
    old = past.values["messages"][-1]
    forked = graph.update_state(past.config, {"messages": [HumanMessage("What if?", id=old.id)]})
    graph.invoke(None, forked)
    print(f"the fork says            {last_words(graph.get_state(config))}")
    print(f"the original still says  {last_words(graph.get_state(head.config))}")


def shortened(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, datetime):
        return f"<{value}>"
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value] if isinstance(value, list) else value


def show_collections(saver: MongoDBSaver, thread_id: str) -> None:
    database, names = saver.client[saver.settings.db_name], saver.settings
    # A checkpoint that refers to a blob, the report, and the writes of the task that wrote it.
    examples = {
        names.checkpoints: {"values.blob": {"$exists": True}},
        names.writes: {"writes.report.blob": {"$exists": True}},
        names.blobs: {},
    }
    for name, query in examples.items():
        documents = database[name]
        print(f"{name}: {documents.count_documents({'thread_id': thread_id})} documents")
        if example := documents.find_one({"thread_id": thread_id, **query}):
            pp(shortened(example), width=110)


def show(saver: MongoDBSaver, config: RunnableConfig) -> None:
    graph = build(saver)
    print("\n== A conversation, with parallel tasks, a subgraph and a question to the user")
    talk(graph, config, "Report on otters and owls and oaks.")
    answer(graph, config, "yes")
    talk(graph, config, "Thank you.")
    print("\n== Its history, newest first")
    snapshots = history(graph, config)
    past = next(snapshot for snapshot in snapshots if snapshot.next == ("model",))
    print("\n== Back in time: replay from an old checkpoint")
    go_back(graph, config, past)
    print("\n== A fork: another question at an old checkpoint")
    fork(graph, config, past)
    print("\n== What lies in MongoDB")
    show_collections(saver, config["configurable"]["thread_id"])


def open_saver(db_name: str) -> AbstractContextManager[MongoDBSaver]:
    uri = os.environ.get("MONGODB_URI")
    return MongoDBSaver.from_conn_string(uri, db_name) if uri else MongoDBSaver.embedded(db_name=db_name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default="langgraph_demo", help="the database (default: %(default)s)")
    thread_id = f"demo-{uuid.uuid4()}"
    with open_saver(parser.parse_args().db) as saver:
        print(f"MongoDB {saver.client.server_info()['version']}, thread {thread_id}")
        try:
            show(saver, {"configurable": {"thread_id": thread_id}})
        finally:
            saver.delete_thread(thread_id)
            print("\n== The thread is deleted")
            show_collections(saver, thread_id)


if __name__ == "__main__":
    main()
