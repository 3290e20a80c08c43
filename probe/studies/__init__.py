"""The studies: choose words, measure, conclude, return.

study                about single words; cost: what it will take
survey, survey_word  about words in general; one word of a survey
workers              who measures the words of a survey: this process, or others
"""
