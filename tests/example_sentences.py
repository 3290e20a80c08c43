"""Sentences with a word that no Western encoding has, for tests of files and streams."""

RIVER = ("νερό", "ψάρι", "λάσπη", "γέφυρα")
MONEY = ("δάνειο", "τόκος", "χρήμα", "χρέος")
GREEK = [
    {"word": "τράπεζα", "sense": sense, "text": f"{before} {cue} και η τράπεζα"}
    for sense, cues in (("ποτάμι", RIVER), ("λεφτά", MONEY))
    for cue in cues
    for before in ("το", "ένα")
]
