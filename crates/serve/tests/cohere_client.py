"""Talks to a server as Cohere's users do. Usage: cohere_client.py URL; prints what worked as JSON."""

import json
import sys

import cohere

URL = sys.argv[1]
QUERY = "eating food"
DOCUMENTS = ["Fox", "A man is eating food.", "The quick brown fox jumps over the dog."]


def second():
    client = cohere.ClientV2(api_key="none", base_url=URL)
    answer = client.rerank(model="ranker", query=QUERY, documents=DOCUMENTS, top_n=2, max_tokens_per_doc=20)
    scores = [result.relevance_score for result in answer.results]
    assert len(scores) == 2 and 1 >= scores[0] >= scores[1] >= 0, answer
    assert answer.id and all(0 <= result.index < 3 for result in answer.results), answer


def first():
    client = cohere.Client(api_key="none", base_url=URL)
    answer = client.rerank(model="ranker", query=QUERY, documents=DOCUMENTS, return_documents=True)
    assert [result.document.text for result in answer.results] == [DOCUMENTS[result.index] for result in answer.results], answer


def errors():
    client = cohere.ClientV2(api_key="none", base_url=URL)
    try:
        client.rerank(model="ranker", query=QUERY, documents=[])
    except cohere.errors.BadRequestError as error:
        assert "documents" in str(error.body), error
    else:
        raise AssertionError("a request without documents was answered")


done = []
for step in [second, first, errors]:
    step()
    done.append(step.__name__)
print(json.dumps(done))
