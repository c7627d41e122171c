"""The words of the virtual screens: one small lexicon that all apps share, and what the numbers may be."""

from __future__ import annotations

# Short words have three letters: they fit a widget of one cell and name chats, files, sheet rows, products, fields.
NAMES = ("Ann", "Ben", "Eva", "Kim", "Leo", "Mia", "Sam", "Tom")
THINGS = ("Bag", "Box", "Cup", "Fan", "Hat", "Jar", "Key", "Map", "Mug", "Pen", "Pot", "Toy")
SHORT = NAMES + THINGS

# Long words have up to five letters: settings, wide products, words to write.
LONG = ("Alarm", "Clock", "Light", "Music", "Photo", "Radio", "Sound", "Wifi")

WORDS = SHORT + LONG

# Words of the interfaces themselves.
LEVELS = ("Low", "Mid", "Top", "Off")
COLOURS = ("Red", "Tan", "Sky")
WRAPS = ("Lid", "Bow", "Rim")
TIMER_ACTIONS = ("Delete", "Rename", "Repeat", "Mute")
FILE_MENU = ("Save", "Print", "Share", "Close")
EDIT_MENU = ("Undo", "Paste", "Find", "Sort")
CELL_MENU = ("Bold", "Clear", "Copy", "Lock", "Note", "Trim")
PRODUCT_ACTIONS = ("Add", "Save", "Share")
TICKET_ACTIONS = ("Close", "Reply", "Merge", "Print")

NUMBERS = tuple(str(number) for number in range(10, 100))
